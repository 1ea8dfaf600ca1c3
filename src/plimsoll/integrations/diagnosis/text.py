"""A diagnosis as text: the answer, what is installed, what works, and commands for the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.base.printable import join_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from plimsoll.integrations.diagnosis.parts import Ability, Installed


def diagnosis_text(installed: Sequence[Installed], abilities: Sequence[Ability]) -> str:
    """The text of `plimsoll doctor`."""
    names = [one.name for one in installed] + [one.name for one in abilities]
    width = max(map(len, names)) + 2
    lines = [_answer(abilities), "", "Installed:"]
    lines += [f"  {one.name:{width}}{_version(one)}" for one in installed]
    for title, works in (("Works here:", True), ("Does not work here:", False)):
        rows = [row for one in abilities if one.works == works for row in _rows(one, width)]
        if rows:
            lines += ["", title, *rows]
    return join_lines(lines)


def _version(installed: Installed) -> str:
    version = installed.version or "no"
    return version if installed.note is None else f"{version}; {installed.note}"


def _answer(abilities: Sequence[Ability]) -> str:
    missing = [one for one in abilities if not one.works]
    commands = [one.command for one in missing if one.command is not None]
    if commands:
        return f"Not all of plimsoll works here yet; next: {commands[0]}"
    if missing:
        notes = dict.fromkeys(one.note or one.name for one in missing)
        return f"All that can work here works; {'; '.join(notes)}."
    return "All of plimsoll works here."


def _rows(ability: Ability, width: int) -> Iterator[str]:
    yield f"  {ability.name:{width}}{ability.note or ''}".rstrip()
    if ability.command is not None:
        yield f"  {'':{width}}{ability.command}"
