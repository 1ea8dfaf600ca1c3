"""The command line: one module a verb, which parses, calls the Python API and prints.

Begin with `app`. All verbs print by `terminal`; `progress` says how far long work is.
"""

from plimsoll.base.standard_streams import prepare_standard_streams
from plimsoll.cli.interrupts import hold_interrupts


def main() -> None:
    """Run the command line and exit."""
    # An interrupt waits until modules are loaded: in the midst of one it ends in a traceback.
    hold_interrupts()
    prepare_standard_streams()
    from plimsoll.cli.app import main as run

    run()


__all__ = ["main"]
