"""Words that several recognisers use."""

from __future__ import annotations


def subject(line: str | None) -> str:
    """The source line as the subject of a sentence, without the function's name."""
    if line is None:
        return "the program"
    return line.rpartition(" ")[0] or line
