"""The wall around a trial: the kernel refuses all writes that bypass the scratch layer."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_LONGEST = 2 * 4096


@dataclass(frozen=True)
class Refused:
    """The attempts of one program to write to one real file, all refused by the kernel.

    Attributes:
        path: The file.
        program: The name of the program that tried to write.
        count: The number of refused writes.
    """

    path: str
    program: str
    count: int


class Wall:
    """Landlock and a seccomp filter, which the library of the scratch layer sets up.

    Args:
        library: The library's file.
        writable: Folders, files and devices that the trial may write to.
        password: The number by which the filter recognizes calls of the scratch layer.
    """

    def __init__(self, library: Path, writable: Sequence[Path], password: int) -> None:
        self._library = ctypes.CDLL(str(library))
        self._names = (ctypes.c_char_p * len(writable))(*map(os.fsencode, writable))
        self._password = password
        self._text = ctypes.create_string_buffer(_LONGEST)

    def check_possible(self) -> None:
        """Checks that a process can put itself behind the wall here.

        Raises:
            OSError: If the kernel refuses.
        """
        problem = self._library.plimsoll_wall_is_possible()
        if problem != 0:
            raise OSError(
                -problem, f"no Landlock of version 3, or no filter: {os.strerror(-problem)}"
            )

    def raise_around_this_process(self) -> int:
        """Puts this process and all its future children behind the wall.

        Returns:
            The file descriptor on which the kernel reports system calls that bypass the layer.

        Raises:
            OSError: If the kernel refuses.
        """
        password = ctypes.c_ulonglong(self._password)
        listener: int = self._library.plimsoll_wall_raise(self._names, len(self._names), password)
        if listener < 0:
            raise OSError(-listener, os.strerror(-listener))
        return listener

    def answer(self, listener: int) -> tuple[str, str] | None:
        """Answers one system call that the kernel reports: allows or refuses it.

        Returns:
            The path and the program of a refused call; None if the call is allowed.
        """
        found = self._library.plimsoll_wall_answer(
            listener, self._names, len(self._names), self._text, len(self._text)
        )
        if found != 1:
            return None
        path, _, program = os.fsdecode(self._text.value).rpartition("\n")
        return path, program
