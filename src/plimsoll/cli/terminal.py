"""Prints answers: to a terminal in colour and at full width, to a pipe as plain text.

A colour never says more than the words do, and `NO_COLOR` switches colours off.
"""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Literal

from plimsoll.base.layout import IN_A_PIPE, folded, shown_width
from plimsoll.base.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console
    from rich.text import Text

NOT_KNOWN = 3
"""The exit status of a command that could not find the answer to its question."""
Verdict = Literal["yes", "no"]
_ANSWERS = {"yes": "bold green", "no": "bold red", None: "bold"}
_STYLES = (
    (r"(?m)^\S.*(?=\n  )", "bold"),
    (r"(?m)^note: .*$", "yellow"),
    (r"(?m)^(?:Run|Try): .*$", "bold cyan"),
    (r"\b\d[\d.,]* (?:bytes?|[KMGT]iB)\b", "cyan"),
    (r"[^\s:]+\.py:\d+", "magenta"),
    (r"\b(?:does not fit|not enough for the request that failed|results differ)\b", "red"),
)
"""Patterns, each with the style of the words that it matches; applied in this order."""


def console() -> Console:
    """Returns the console for stdout. For a pipe it has `IN_A_PIPE` columns and no colour."""
    from rich.console import Console

    is_terminal = _is_terminal()
    made = Console(
        soft_wrap=True,
        highlight=False,
        markup=False,
        emoji=False,
        force_terminal=is_terminal,
        force_jupyter=False,
        color_system="auto" if is_terminal else None,
    )
    made.width = shown_width(made.width) if is_terminal else IN_A_PIPE
    return made


def show(make: Callable[[int | None], str | Text], verdict: Verdict | None = None) -> None:
    """Prints an answer, whose first line answers the user's question.

    Args:
        make: Takes a number of columns, and returns the answer laid out for a terminal of this
            width. For None, the lines keep their full length.
        verdict: Whether the first line is good news; it sets the line's colour.
    """
    if not _is_terminal():
        print(make(None))
        return
    from rich.text import Text

    to = console()
    made = make(to.width)
    shown = Text(made) if isinstance(made, str) else made
    for words, style in _STYLES:
        shown.highlight_regex(words, style)
    answer = str(make(None)).partition("\n")[0]
    count = len(folded(answer, to.width))
    lines = shown.split(allow_blank=True)
    first = [Text(line.plain, _ANSWERS[verdict]) for line in lines[:count]]
    to.print(Text("\n").join([*first, *lines[count:]]))


def hint(command: Sequence[str]) -> None:
    """Prints the next useful command, quoted for a shell, if stderr is a terminal."""
    if sys.stderr.isatty():
        print(printable(f"next: {shlex.join(command)}"), file=sys.stderr)


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()
