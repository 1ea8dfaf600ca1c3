"""Formats a diagnosis as text: the answer, what fails, what works, and what is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.base.printable import join_lines
from plimsoll.integrations.diagnosis.parts import NO_GPU, PREDICTING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from plimsoll.integrations.diagnosis.parts import Ability, Installed


def diagnosis_text(installed: Sequence[Installed], abilities: Sequence[Ability]) -> str:
    """Returns the text that `plimsoll doctor` prints."""
    names = [one.name for one in installed] + [one.name for one in abilities]
    width = max(map(len, names)) + 2
    lines = [_answer(abilities)]
    for title, works in (("Does not work here:", False), ("Works here:", True)):
        rows = [row for one in abilities if one.works == works for row in _rows(one, width)]
        if rows:
            lines += ["", title, *rows]
    lines += ["", "Installed:"]
    lines += [f"  {one.name:{width}}{_version(one)}" for one in installed]
    return join_lines(lines)


def _version(installed: Installed) -> str:
    version = installed.version or "no"
    return version if installed.note is None else f"{version}; {installed.note}"


def _answer(abilities: Sequence[Ability]) -> str:
    """Returns the answer: what does not work, and the command that repairs it."""
    missing = [one for one in abilities if not one.works]
    if not missing:
        return "All of plimsoll works here."
    first = min(missing, key=lambda one: (one.name != PREDICTING, one.command is None))
    if first.command is not None:
        return f"{_does(first)} not work here yet: {first.note}; next: {first.command}"
    if first.note == NO_GPU and len(missing) == 1:
        return "This machine has no NVIDIA GPU. Everything that needs no GPU works here."
    predicting = next((one for one in abilities if one.name == PREDICTING and one.works), None)
    works = "" if predicting is None else f"{predicting.name} work here. "
    return f"{works}{_does(first)} not work here: {first.note}"


def _does(ability: Ability) -> str:
    return f"{ability.name} {'do' if ',' in ability.name else 'does'}"


def _rows(ability: Ability, width: int) -> Iterator[str]:
    yield f"  {ability.name:{width}}{ability.note or ''}".rstrip()
    if ability.command is not None:
        yield f"  {'':{width}}{ability.command}"
