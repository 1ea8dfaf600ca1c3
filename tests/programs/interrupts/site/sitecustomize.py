"""Sends SIGINT to the process group when the module named by $INTERRUPTED_AT is imported."""

import os
import signal
import sys


class Interrupts:
    """A module finder that finds nothing, but interrupts the process group."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:  # noqa: ARG002
        """Interrupts the process group, once."""
        if name == os.environ["INTERRUPTED_AT"]:
            sys.meta_path.remove(self)
            os.kill(0, signal.SIGINT)


sys.meta_path.insert(0, Interrupts())
