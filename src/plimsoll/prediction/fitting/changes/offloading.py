"""Moves saved tensors to host memory until the backward pass needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.base.units import MiB, format_size
from plimsoll.prediction.fitting.changes.change import Change
from plimsoll.prediction.fitting.changes.sites import find_pass

if TYPE_CHECKING:
    from plimsoll.prediction.fitting.script_text import ScriptText
    from plimsoll.prediction.survey import Survey


def offloading_change(survey: Survey, budget_bytes: int, saves_bytes: int) -> Change:
    """Returns the change that keeps the program within a budget by offloading saved tensors."""
    budget = budget_bytes // MiB
    return Change(
        "offload",
        f"let saved tensors wait in the host's memory, above {format_size(budget * MiB)}",
        short=f"offload above {format_size(budget * MiB)}",
        edit=lambda script: _offloaded(script, survey, budget),
        order=3,
        saves_bytes=saves_bytes,
        costs_seconds=2 * saves_bytes / 25e9,
    )


def _offloaded(script: ScriptText, survey: Survey, budget: int) -> ScriptText:
    statements = find_pass(script, survey).statements
    header = f'with plimsoll.offload(budget="{budget}MiB"):'
    return script.wrap(statements[0], statements[-1], header).importing("plimsoll")
