"""The programs in Python that a script starts otherwise than by `multiprocessing`.

They have no simulated GPUs: what they would take on one nobody sees, so the report names them.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections import Counter
from contextlib import suppress
from typing import Any

from plimsoll.prediction.parts import STARTED_PROGRAM, Assumed
from plimsoll.printable import printable

_PYTHON = re.compile(r"python[\d.]*")
_MOST_SHOWN = 80


class StartedPrograms:
    """Notes, from now on, each program in Python that this process starts."""

    def __init__(self) -> None:
        self._commands: Counter[str] = Counter()
        sys.addaudithook(self._look)

    def assumptions(self) -> list[Assumed]:
        """One for each command."""
        return [
            Assumed(STARTED_PROGRAM, command, None, count)
            for command, count in self._commands.items()
        ]

    def _look(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in ("subprocess.Popen", "os.posix_spawn", "os.system"):
            return
        words = _words(arguments[0] if event == "os.system" else arguments[1])
        if any(map(_is_python, words if _is_shell(words) else words[:1])):
            self._commands[printable(" ".join(words))[:_MOST_SHOWN]] += 1


def _words(command: Any) -> list[str]:
    if isinstance(command, str | bytes | os.PathLike):
        return os.fsdecode(command).split()
    return [word for part in command for word in (os.fsdecode(part).split() or [""])]


def _is_shell(words: list[str]) -> bool:
    return "-c" in words[1:2] and words[0].endswith("sh")


def _is_python(word: str) -> bool:
    """Whether it is an interpreter of Python, or a script that names one."""
    if _PYTHON.fullmatch(os.path.basename(word)):  # noqa: PTH119  a word of any kind
        return True
    path = shutil.which(word)
    with suppress(OSError):
        if path is not None:
            with open(path, "rb") as file:  # noqa: PTH123
                first = file.readline(256)
            return first.startswith(b"#!") and b"python" in first
    return False
