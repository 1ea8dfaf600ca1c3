"""Simulates the script once for each cause of memory use, with the change that removes it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.base.script_file import module_file
from plimsoll.prediction.fitting.attempts import Attempts
from plimsoll.prediction.fitting.changes.of_causes import cause_changes, own_causes
from plimsoll.prediction.fitting.script_text import ScriptText
from plimsoll.prediction.survey import Survey

if TYPE_CHECKING:
    from plimsoll.prediction.request import Request
    from plimsoll.prediction.results import Prediction
    from plimsoll.recordings.causes.cause import Cause


def with_advice(request: Request, prediction: Prediction) -> Prediction:
    """Simulates the script with each cause's change and adds to the cause what the change saved.

    If the change for a cause cannot be made in the script, the reason is added to the cause.

    Args:
        request: The request that was predicted.
        prediction: The prediction.

    Raises:
        InputError: If the script is not a text file.
    """
    script = module_file(request.script) if request.is_module else Path(request.script)
    path = script.resolve()
    survey = Survey(causes=own_causes(path, prediction.causes))
    changes = list(cause_changes(survey))
    if not changes:
        return prediction
    attempts = Attempts(request, path, ScriptText.read(path), prediction.room_bytes)
    tried = {each.changes[0].kind: each for each in attempts.run([(one,) for one in changes])}

    def result(cause: Cause) -> Cause:
        attempt = tried.get(cause.name)
        if attempt is None:
            return cause
        if attempt.prediction is None:
            return replace(cause, why_not=attempt.failure or "the changed script fails")
        after = attempt.prediction
        if prediction.shared_cards:  # then only device_used_bytes counts all processes
            saves = prediction.device_used_bytes - after.device_used_bytes
        else:
            saves = prediction.peak_reserved_bytes - after.peak_reserved_bytes
        return replace(cause, saves_bytes=saves)

    results = [result(each) for each in prediction.causes]
    # Causes come last if the simulation shows that their change saves hardly any memory.
    most = prediction.peak_reserved_bytes
    return replace(prediction, causes=sorted(results, key=lambda each: each.hardly_helps(most)))
