"""Text of anybody's making, such as names in recordings, as it can be shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def printable(text: str) -> str:
    r"""A line in which nothing commands a terminal or turns the direction of reading.

    Control characters, ends of lines, Unicode's marks of direction and format, and what stands for
    bytes that are no text are written as Python escapes them, such as \x1b and \u202e. To be called
    where text leaves the program for people; data, such as paths and JSON, keeps it as it is.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def join_lines(lines: Iterable[str]) -> str:
    """Lines as one text, each of them `printable`."""
    return "\n".join(map(printable, lines))
