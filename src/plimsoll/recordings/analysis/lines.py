"""Finds the source line of a call stack.

The line begins with the innermost frame in the user's own files, which the user can change. If that
frame calls a library, the library's innermost frame follows, because it tells the layers of a model
apart: `train.py:31 step → diffusers/models/unet.py:412 f`. Frames of PyTorch, Python and plimsoll
are skipped. A file's path alone decides whether it belongs to the user, because recordings may come
from other machines.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from plimsoll.recordings.events import Frame

NO_LINE = "(no Python line)"
"""The name of a stack without a line, such as the stacks of autograd's threads."""


@dataclass(frozen=True)
class LineShare:
    """The bytes of one source line at a moment, such as the peak.

    Attributes:
        line: The line in the form of `source_line`.
        bytes: The live bytes that it requested.
        blocks: The number of live blocks that it requested.
    """

    line: str
    bytes: int
    blocks: int


_OWN = re.compile(
    r"""
      [/\\](?:site|dist)-packages[/\\](?:torch|torchgen|functorch|triton|plimsoll)[/\\]
    | [/\\]pytorch[/\\]torch[/\\]
    | [/\\]torchinductor_[^/\\]+[/\\] | [/\\]plimsoll(?:-\d+)?[/\\]compiled[/\\]torch
    | /lib(?:64)?/python3(?:\.\d+t?)?/(?!(?:site|dist)-packages/)
    | \\[Ll]ib\\(?!site-packages\\)
    """,
    re.VERBOSE,
)
_HERE = str(Path(__file__).parents[2])
_RECIPE = re.compile(r"[/\\]plimsoll[/\\](?:prediction[/\\])?recipes[/\\]scripts[/\\]\w+\.py$")
_PACKAGES = re.compile(r".*[/\\](?:site|dist)-packages[/\\]")
_FROM_TEMPLATE = re.compile(r".*[/\\]([\w.]+_(?:propagate|edge_updater))_[a-z0-9_]{8}\.py$")
"""Matches the temporary file that PyTorch Geometric writes for each kind of layer, from a template.
The file's name ends with eight random characters."""
_INTERACTIVE = ("<stdin>", "<ipython-input")
_BEHIND = " → "
_MOST_FILES = 1 << 14
"""The most file names to remember: a recording has many stacks and few files."""


def is_program(frame: Frame) -> bool:
    """Returns whether a frame has a line outside PyTorch, Python and plimsoll."""
    filename, line, _ = frame
    return line > 0 and _owner(filename) is not None


def is_users(frame: Frame) -> bool:
    """Returns whether a frame has a line in the user's own files, not in an installed package."""
    filename, line, _ = frame
    return line > 0 and _owner(filename) == "user"


def source_line(frames: Sequence[Frame]) -> str:
    """Returns the name of a stack: a line of the user's code, then possibly a line of a library.

    Args:
        frames: The stack, innermost frame first.

    Returns:
        The user's innermost frame as "file:line function". If that frame calls a library,
        " → file:line function" of the library's innermost frame follows. A stack without a frame of
        the user is named by the library's frame alone; a stack without either is `NO_LINE`.
    """
    innermost: Frame | None = None
    for frame in frames:
        owner = _owner(frame[0]) if frame[1] > 0 else None
        if owner is not None and innermost is None:
            innermost = frame
        if owner == "user" and innermost is not None:
            behind = "" if frame is innermost else f"{_BEHIND}{_place(innermost)}"
            return f"{_place(frame)}{behind}"
    return NO_LINE if innermost is None else _place(innermost)


def renamed(line: str, rename: Callable[[str], str]) -> str:
    """Renames both parts of a line: the user's part, and the library's part if there is one.

    Args:
        line: The line in the form of `source_line`.
        rename: A function that returns the new name of a part, "file:line function".
    """
    return _BEHIND.join(map(rename, line.split(_BEHIND)))


def users_lines(frames: Sequence[Frame]) -> Iterator[str]:
    """Yields the user's lines of a stack, as "file:line function", the innermost first."""
    for frame in frames:
        if is_users(frame):
            yield _place(frame)


def users_part(line: str) -> str | None:
    """Returns the first place that a line names; None for `NO_LINE`.

    It is a place in the user's code, or in a library if no user's code was on the stack.
    """
    return None if line == NO_LINE else line.split(_BEHIND, maxsplit=1)[0]


def last_part(line: str) -> str:
    """Returns a line without folders: `train.py:31 step` for `/home/me/train.py:31 step`."""
    return renamed(line, lambda place: place.replace("\\", "/").rpartition("/")[2])


def source_lines(
    stacks: NDArray[np.uint32], frames: Callable[[int], list[Frame]]
) -> tuple[NDArray[np.int64], list[str]]:
    """Returns the lines of many stacks.

    Args:
        stacks: The numbers of the stacks.
        frames: A function that returns the frames of a stack, such as `DeviceTrace.frames`.

    Returns:
        The index of each stack's line in the list of lines, and this list. The list has each line
        once.
    """
    numbers, place = np.unique(stacks, return_inverse=True)
    lines: dict[str, int] = {}
    index = [lines.setdefault(source_line(frames(int(one))), len(lines)) for one in numbers]
    return np.array(index, dtype=np.int64)[place], list(lines)


def short_path(filename: str) -> str:
    """Returns a file's path relative to site-packages, dist-packages or the working directory.

    A file that PyTorch Geometric wrote is named without its folder and its random characters.
    """
    try:
        return _short_path(filename, os.getcwd())  # noqa: PTH109 - a `Path` a call takes too long
    except OSError:  # the working directory has been removed
        return filename


@lru_cache(maxsize=_MOST_FILES)
def _short_path(filename: str, folder: str) -> str:
    if _PACKAGES.match(filename):
        return _PACKAGES.sub("", filename, count=1)
    if _FROM_TEMPLATE.match(filename):
        return _FROM_TEMPLATE.sub(r"\1.py", filename)
    try:
        return str(Path(filename).relative_to(folder))
    except ValueError:
        return filename


def _place(frame: Frame) -> str:
    filename, line, function = frame
    return f"{short_path(filename)}:{line} {function}"


@lru_cache(maxsize=_MOST_FILES)
def _owner(filename: str) -> Literal["user", "library"] | None:
    """Returns the owner of a file; None for PyTorch, Python, plimsoll, and names without a file."""
    if filename.startswith(_HERE) or _OWN.search(filename):
        return "user" if _RECIPE.search(filename) else None
    if not filename.endswith(".py") and not filename.startswith(_INTERACTIVE):
        return None
    is_library = _PACKAGES.match(filename) or _FROM_TEMPLATE.match(filename)
    return "library" if is_library else "user"
