"""Writes the sentences about causes, for recognisers and reports."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from plimsoll.base.units import format_size
from plimsoll.recordings.analysis.category_names import category_title

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plimsoll.recordings.analysis.lines import LineShare
    from plimsoll.recordings.causes.cause import Cause


_RANGE = re.compile(r"(.+):(\d+)(?:-(\d+))? \S+")
_PLACE = re.compile(r"(.+:\d+(?:-\d+)?) \S+")


def subject(line: str | None) -> str:
    """Returns "file:line" of a source line, or of a range of lines, as the subject of a sentence.

    Returns "the program" for None.
    """
    if line is None:
        return "the program"
    found = _PLACE.fullmatch(line)
    return line if found is None else found[1]


def first_and_last(line: str | None) -> tuple[str, int, int] | None:
    """Returns the file, the first and the last line number of a source line or a range of lines.

    Returns None if `line` names no line.
    """
    found = _RANGE.fullmatch(line or "")
    return None if found is None else (found[1], int(found[2]), int(found[3] or found[2]))


def is_within(line: str | None, lines: str | None) -> bool:
    """Returns whether a source line is, or lies in, a range of lines of the same file."""
    own, whole = first_and_last(line), first_and_last(lines)
    if own is None or whole is None:
        return line == lines
    return own[0] == whole[0] and whole[1] <= own[1] and own[2] <= whole[2]


def mostly_at(line: str | None, inner: str | None) -> str:
    """Returns ", mostly at file:line," with the file and line of `inner`.

    Returns "" if `inner` is unknown, or is at the same place as `line`.

    Args:
        line: The line that a sentence names; it calls `inner`.
        inner: The line that requests most of the memory, as "FILE:LINE FUNCTION"; None if unknown.
    """
    where = subject(inner)
    return "" if inner is None or where == subject(line) else f", mostly at {where},"


def why(cause: Cause, begin: str = "Why") -> str:
    """Returns one line with the cause, the advice, and what the advice saved in a trial.

    Args:
        cause: The cause.
        begin: The word that begins the line.
    """
    if not cause.change:
        return f"{begin}: {cause.sentence}."
    if cause.why_not:
        advice = f"Tried, without success: {cause.change} ({cause.why_not})"
    elif cause.serves_failed_requests:
        advice = f"What helps: {cause.change} (serves the request that failed, tried)"
    elif cause.serves_failed_requests is not None:
        advice = f"Tried, and not enough for the request that failed: {cause.change}"
    elif cause.saves_bytes is None:
        advice = f"What may help (not tried): {cause.change}"
    elif cause.saves_bytes <= 0:
        advice = f"Tried, and saves nothing: {cause.change}"
    else:
        # If memory grows, the change may save more: a trial ends early, and a replay keeps each
        # leaked block for one more pass.
        least = "at least " if cause.growth_bytes else ""
        saves = f"saves {least}{format_size(cause.saves_bytes)}"
        advice = f"What helps: {cause.change} ({saves}, tried)"
    return f"{begin}: {cause.sentence}. {advice}."


def also(cause: Cause) -> str:
    """Returns one line with a cause of growth besides the main cause, and the changed statement."""
    patch = f" Change: {cause.patch}" if cause.patch else ""
    return f"{why(cause, 'Also')}{patch}"


def most_held(by_category: Mapping[str, int], lines: Sequence[LineShare]) -> str | None:
    """Describes what holds the most memory, for a program without a known cause.

    Names the largest category and the first of `lines`. Returns None if both are unknown.
    """
    known = {name: size for name, size in by_category.items() if size}
    largest = max(known, key=known.__getitem__, default="other")
    held = []
    if largest != "other":
        size = format_size(known[largest])
        held.append(f"the largest part of the peak is {category_title(largest)}, {size}.")
    if lines:
        most = f"{lines[0].line}, {format_size(lines[0].bytes)}"
        held.append(f"{'The' if held else 'the'} line that holds the most is {most}.")
    return f"Why: {' '.join(held)}" if held else None
