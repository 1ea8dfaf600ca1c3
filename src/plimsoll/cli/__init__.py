"""The command line. Each verb, such as `plimsoll predict`, has a module of its own.

A verb's module parses the arguments, calls the Python API and prints. Begin with `app`. All verbs
print with the functions of `terminal`; `progress` shows the progress of long work.
"""

from plimsoll.base.standard_streams import prepare_standard_streams
from plimsoll.cli.interrupts import hold_interrupts


def main() -> None:
    """Run the command line and exit."""
    # SIGINT waits until the modules are imported: KeyboardInterrupt during an import would print a
    # traceback.
    hold_interrupts()
    prepare_standard_streams()
    from plimsoll.cli.app import main as run

    run()


__all__ = ["main"]
