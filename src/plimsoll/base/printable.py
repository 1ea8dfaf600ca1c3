"""Makes text from any source, such as names in recordings, safe to print."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def printable(text: str) -> str:
    r"""Returns text that can neither control a terminal nor change the direction of reading.

    Control characters, line breaks, Unicode's marks of direction and format, and surrogates of
    undecodable bytes are written as Python escapes them, such as \x1b and \u202e. Call this where
    text is shown to people, and not on data such as paths and JSON.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def join_lines(lines: Iterable[str]) -> str:
    """Joins lines to one text; each line is made `printable`."""
    return "\n".join(map(printable, lines))
