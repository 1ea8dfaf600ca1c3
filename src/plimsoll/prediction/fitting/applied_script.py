"""Writes a changed script. Comments at its head list the changes and the command to run it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from plimsoll.base.files import NewFile
from plimsoll.base.printable import printable

if TYPE_CHECKING:
    from os import PathLike

    from plimsoll.prediction.fitting.plan_parts import PlanParts

_FIRST = re.compile(r"#!|[ \t\f]*#.*?coding[:=]")
"""Matches a `#!` line or an encoding line. They work only at the top of a file (PEP 263)."""


def write_applied(text: str, plan: PlanParts, path: str | PathLike[str], *, force: bool) -> None:
    """Writes the changed script, with the plan's command in a comment.

    The command can also set options and an allocator, which the script does not contain.

    Args:
        text: The changed script.
        plan: The plan.
        path: The file.
        force: Whether to replace an existing file.

    Raises:
        InputError: If the file cannot be written.
    """
    with NewFile(path, force=force) as file:
        file.write(with_head(text, plan).encode())


def with_head(text: str, plan: PlanParts) -> str:
    """Returns the changed script with comments at its head: the changes, and the command."""
    lines = text.split("\n")
    begin = max((n for n, line in enumerate(lines[:2], 1) if _FIRST.match(line)), default=0)
    comments = [
        f"plimsoll fit made this from {plan.script}, for {plan.gpu}:",
        *(f"- {change.name}" for change in plan.plan),
        f"Run: {plan.command}",
    ]
    head = [f"# {printable(comment)}" for comment in comments]
    return "\n".join([*lines[:begin], *head, *lines[begin:]])
