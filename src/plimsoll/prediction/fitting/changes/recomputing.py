"""Recomputes modules in the backward pass instead of keeping their activations."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from plimsoll.base.units import format_count
from plimsoll.prediction.fitting.changes.change import Change
from plimsoll.prediction.fitting.changes.sites import find_model, trained

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plimsoll.prediction.fitting.script_text import ScriptText
    from plimsoll.prediction.survey import Recomputation, Survey

_SHOWN = 3


def recomputing_change(survey: Survey, plan: Recomputation, saves_bytes: int) -> Change:
    """Returns the change that recomputes the modules of a plan in the backward pass."""
    names = ranges(plan.modules)
    count = format_count(len(plan.modules), "module")
    shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
    return Change(
        "recomputation",
        f"recompute {count}: {shown}",
        short=f"recompute {names[0]}" if len(names) == 1 else f"recompute {count}",
        detail=" ".join(names),
        edit=lambda script: _recomputed(script, survey, names),
        saves_bytes=saves_bytes,
        costs_seconds=plan.seconds,
    )


def _recomputed(script: ScriptText, survey: Survey, names: Sequence[str]) -> ScriptText:
    model = find_model(script, trained(survey))
    quoted = ", ".join(f'"{name}"' for name in names)
    line = f"plimsoll.recompute({model.name}, {quoted})"
    return script.insert_after(model.statement, [line]).importing("plimsoll")


def ranges(names: Sequence[str]) -> list[str]:
    """Returns the names in a shorter form, such as "blocks.0-7" for the names of eight modules."""
    alike: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    others = []
    for name in names:
        match = re.fullmatch(r"(.*?\.|)(\d+)((?:\..*)?)", name)
        if match is None:
            others.append(name)
        else:
            alike[match[1], match[3]].append(int(match[2]))
    found = list(others)
    for (head, tail), numbers in alike.items():
        for first, last in _runs(sorted(numbers)):
            span = str(first) if first == last else f"{first}-{last}"
            found.append(f"{head}{span}{tail}")
    return found


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs
