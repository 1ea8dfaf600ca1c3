"""Implements `%load_ext plimsoll`, which adds the magic `%%memory` to IPython and Jupyter."""

from __future__ import annotations

from typing import Any


def load_ipython_extension(ipython: Any) -> None:
    """Adds `%%memory` to a notebook: it shows a cell's GPU memory and the lines that hold it.

    IPython calls this function for `%load_ext plimsoll`; docs/integrations.md has an example.
    """
    from plimsoll.integrations.cell_magic import run_cell  # imported here because it needs IPython

    def memory(line: str, cell: str) -> Any:
        """Runs a cell and shows its GPU memory and the lines that hold it.

        `%%memory --record FILE` also keeps the recording, as a .plim file.
        """
        return run_cell(ipython, line, cell)

    ipython.register_magic_function(memory, "cell")
