"""The command line: one module a verb, which parses, calls the Python API and prints.

Begin with `app`. All verbs print by `terminal`; `progress` says how far long work is.
"""

from plimsoll.cli.interrupts import hold_interrupts
from plimsoll.cli.standard_streams import replace_closed_streams


def main() -> None:
    """Run the command line and exit."""
    # An interrupt waits until modules are loaded: in the midst of one it ends in a traceback.
    hold_interrupts()
    replace_closed_streams()
    from plimsoll.cli.app import main as run

    run()


__all__ = ["main"]
