"""Notes the Python programs that a script starts and that get no simulated GPUs.

A started program gets the simulated GPUs through environment variables. It gets no GPUs if the
script starts it with other environment variables, or with an option that makes Python ignore them.
The GPU memory of such a program is not counted, and the report names the program.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from plimsoll.base.printable import printable
from plimsoll.prediction.assumed import STARTED_PROGRAM, Assumed
from plimsoll.torch.session.inherited import is_inherited

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll.base.watchers import Watchers

_PYTHON = re.compile(r"python[\d.]*")
_HEEDLESS = re.compile(r"-[^-cmWX]*[IES]")
"""Options with which Python ignores PYTHONPATH or `sitecustomize`."""
_ENVIRONMENTS = {"subprocess.Popen": 3, "os.posix_spawn": 2}
"""For each of Python's audit events, the position of the environment in its arguments."""
_MOST_SHOWN = 80


class StartedPrograms:
    """Notes, from now on, each Python program that this process starts without simulated GPUs."""

    def __init__(self, watchers: Watchers) -> None:
        self._commands: Counter[str] = Counter()
        sys.addaudithook(watchers.guarded("programs that the script starts", self._look))

    def assumptions(self) -> list[Assumed]:
        """Returns an assumption for each noted command."""
        return [
            Assumed(STARTED_PROGRAM, command, None, count)
            for command, count in self._commands.items()
        ]

    def _look(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in ("subprocess.Popen", "os.posix_spawn", "os.system"):
            return
        words = _words(arguments[0] if event == "os.system" else arguments[1])
        inherits = is_inherited(_environment(event, arguments))
        for place in range(len(words) if _is_shell(words) else 1):
            options = _options(words[place:])
            if options is not None and (not inherits or any(map(_HEEDLESS.match, options))):
                self._commands[printable(" ".join(words))[:_MOST_SHOWN]] += 1
                return


def _environment(event: str, arguments: tuple[Any, ...]) -> Mapping[str, str]:
    given = arguments[_ENVIRONMENTS[event]] if event in _ENVIRONMENTS else None
    if given is None:
        return os.environ
    return {os.fsdecode(name): os.fsdecode(value) for name, value in given.items()}


def _words(command: Any) -> list[str]:
    if isinstance(command, str | bytes | os.PathLike):
        return os.fsdecode(command).split()
    return [word for part in command for word in (os.fsdecode(part).split() or [""])]


def _is_shell(words: list[str]) -> bool:
    return "-c" in words[1:2] and words[0].endswith("sh")


def _options(words: list[str]) -> list[str] | None:
    """Returns the options that a command gives to Python; None if it does not run Python."""
    if not words:
        return None
    if _PYTHON.fullmatch(os.path.basename(words[0])):  # noqa: PTH119  a word of any kind
        end = next((i for i, word in enumerate(words[1:], 1) if not word.startswith("-")), None)
        return words[1:end]
    path = shutil.which(words[0])
    with suppress(OSError):
        if path is not None:
            with open(path, "rb") as file:  # noqa: PTH123
                first = file.readline(256)
            if first.startswith(b"#!") and b"python" in first:
                return os.fsdecode(first).split()[1:]
    return None
