"""The source line that a call stack stands for.

It is the innermost frame of the program: the first that is neither PyTorch's nor Python's own, nor
plimsoll's, but for its recipes, which are programs.
Other libraries count as the program, for their lines tell one layer of a model from another.
Recordings come from other machines, so that files are told by their paths, not by what is here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from plimsoll.recordings import Frame

NO_LINE = "(no Python line)"
"""What stands for a stack without one: PyTorch's own threads, such as autograd's, have none."""


@dataclass(frozen=True)
class LineShare:
    """What one source line holds at a moment, such as the peak.

    Attributes:
        line: "file:line function".
        bytes: What was asked for there and is live then.
        blocks: In how many blocks.
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
_HERE = str(Path(__file__).parents[1])
_RECIPE = re.compile(r"[/\\]plimsoll[/\\]recipes[/\\]scripts[/\\]\w+\.py$")
_PACKAGES = re.compile(r".*[/\\](?:site|dist)-packages[/\\]")
_INTERACTIVE = ("<stdin>", "<ipython-input")


def is_program(frame: Frame) -> bool:
    """Whether a frame is the program's, not PyTorch's or Python's own, and has a line."""
    filename, line, _ = frame
    if line <= 0:
        return False
    if filename.startswith(_HERE) or _OWN.search(filename):
        return _RECIPE.search(filename) is not None
    return filename.endswith(".py") or filename.startswith(_INTERACTIVE)


def source_line(frames: Sequence[Frame]) -> str:
    """The line of a stack, innermost frame first, as "file:line function"."""
    for frame in frames:
        if is_program(frame):
            filename, line, function = frame
            return f"{short_path(filename)}:{line} {function}"
    return NO_LINE


def is_in_package(filename: str) -> bool:
    """Whether a file is an installed package's."""
    return _PACKAGES.match(filename) is not None


def source_lines(
    stacks: NDArray[np.uint32], frames: Callable[[int], list[Frame]]
) -> tuple[NDArray[np.int64], list[str]]:
    """The lines of many stacks.

    Args:
        stacks: Their numbers.
        frames: The frames of a number, such as `DeviceTrace.frames`.

    Returns:
        For each stack, the index of its line; and the lines, each once.
    """
    numbers, place = np.unique(stacks, return_inverse=True)
    lines: dict[str, int] = {}
    index = [lines.setdefault(source_line(frames(int(one))), len(lines)) for one in numbers]
    return np.array(index, dtype=np.int64)[place], list(lines)


def short_path(filename: str) -> str:
    """A file as people know it: inside its package, or from the working directory."""
    if _PACKAGES.match(filename):
        return _PACKAGES.sub("", filename, count=1)
    try:
        return str(Path(filename).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return filename
