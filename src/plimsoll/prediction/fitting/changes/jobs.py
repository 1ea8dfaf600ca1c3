"""The changes for jobs of several ranks. They reduce what each rank keeps in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.prediction.fitting.changes.data_parallel import data_parallel_changes
from plimsoll.prediction.fitting.changes.fully_sharded import fully_sharded_changes
from plimsoll.prediction.fitting.changes.sharded_optimizer import sharded_optimizer_changes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.prediction.fitting.changes.change import Change
    from plimsoll.prediction.fitting.script_text import ScriptText
    from plimsoll.prediction.survey import Survey


def job_changes(survey: Survey, script: ScriptText) -> Iterator[Change]:
    """Yields changes to what each rank keeps of the model and its optimizer.

    Yields nothing if the job has only one rank.

    Args:
        survey: The survey of the unchanged script.
        script: The script's text.
    """
    if survey.ranks > 1:
        yield from data_parallel_changes(survey)
        yield from sharded_optimizer_changes(survey)
        yield from fully_sharded_changes(survey, script)
