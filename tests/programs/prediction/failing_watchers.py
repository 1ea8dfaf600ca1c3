"""Runs a script for a prediction, and makes some of plimsoll's watchers of the script fail.

Run it as `failing_watchers.py installs|looks FD`. It reads plimsoll's request from descriptor FD.
With "installs", the watchers in INSTALLS fail. With "looks", all other watchers fail.
"""

import sys
from typing import Any, NoReturn

from plimsoll.base.watchers import Watchers

INSTALLS = {  # these watchers only install other watchers
    "modules and optimizers",
    "resets of peaks",
    "the calls of modules",
    "the host's memory after PyTorch's import",
    "what could be changed",
}
kind = sys.argv.pop(1)
guarded = Watchers.guarded


def guarded_failing(self: Watchers, name: str, watcher: Any) -> Any:
    def fail(*_: Any, **__: Any) -> NoReturn:
        raise ArithmeticError("made to fail")

    return guarded(self, name, fail if (name in INSTALLS) == (kind == "installs") else watcher)


if __name__ == "__main__":
    Watchers.guarded = guarded_failing  # type: ignore[method-assign]
    from plimsoll.prediction.child import program

    program.main()
