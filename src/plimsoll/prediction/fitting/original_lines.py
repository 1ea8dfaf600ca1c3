"""Gives the lines of a changed script the numbers that they have in the unchanged script."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.recordings.analysis.lines import renamed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plimsoll.prediction.fitting.script_text import ScriptText
    from plimsoll.recordings.analysis.lines import LineShare

_PLACE = re.compile(r"(.*):(\d+)( .*)?", re.DOTALL)


def original_lines(shares: Sequence[LineShare], path: Path, changed: ScriptText) -> list[LineShare]:
    """Returns the shares with the script's lines numbered as in the unchanged script.

    A line that a change added is marked as added.

    Args:
        shares: The bytes of each line, as the changed script numbers it. Lines of other files stay
            as they are.
        path: The script's file.
        changed: The script's text with the changes.
    """
    return [
        replace(share, line=renamed(share.line, lambda place: _original(place, path, changed)))
        for share in shares
    ]


def _original(place: str, path: Path, changed: ScriptText) -> str:
    match = _PLACE.fullmatch(place)
    if match is None or Path(match[1]).resolve() != path:
        return place
    number = int(match[2])
    if not 1 <= number <= len(changed.lines):
        return place
    origin = changed.origins[number - 1]
    if origin is None:
        return f"{match[1]}{match[3] or ''}, added: {changed.lines[number - 1].strip()}"
    return f"{match[1]}:{origin}{match[3] or ''}"
