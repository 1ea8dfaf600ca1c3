"""Tries changes of the program itself by running the script on a simulated GPU.

A recording cannot show the effect of a smaller batch; running the script can. The changes are those
of `plimsoll fit` (`plimsoll.prediction.fitting.changes`), each tried alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.base.errors import InputError
from plimsoll.engine.gpus.profiles import gpu_profile
from plimsoll.explanation.kept_advice import LEAST_SHARE
from plimsoll.explanation.parts import Advice, ScriptRun
from plimsoll.explanation.ranking import LEAST_TIME
from plimsoll.prediction.fitting.attempts import Attempts
from plimsoll.prediction.fitting.changes.batch import batch_changes
from plimsoll.prediction.fitting.changes.change import Change
from plimsoll.prediction.fitting.changes.plain import plain_changes
from plimsoll.prediction.fitting.changes.recomputing import recomputing_change
from plimsoll.prediction.fitting.script_text import ScriptText
from plimsoll.prediction.fitting.varied_argument import take_out
from plimsoll.prediction.options import Options

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from plimsoll.engine.protocol import AllocatorName
    from plimsoll.explanation.parts import AdviceCost
    from plimsoll.prediction.fitting.attempts import Attempt

_MOST_CHANGES = 7
_ALIKE = 0.05
"""A program's simulated peak is within this share of its recorded peak, above or below.

See docs/predict.md.
"""


def try_changes(
    script: str,
    arguments: Sequence[str],
    *,
    gpu: str,
    conf: str,
    allocator: AllocatorName,
    vary: str | None,
    recorded_bytes: int,
    is_whole: bool,
) -> tuple[list[Advice], ScriptRun, list[str]]:
    """Runs a script unchanged, and with each of its possible changes.

    Args:
        script: The script.
        arguments: Its arguments.
        gpu: The card to simulate.
        conf: The allocator's settings, in the syntax of PYTORCH_CUDA_ALLOC_CONF.
        allocator: The allocator of the run.
        vary: An argument to halve, such as "--batch-size"; or None.
        recorded_bytes: The most bytes that the recorded program had allocated.
        is_whole: Whether all of the recorded program's requests were served.

    Returns:
        Returns the changes that save 2 % or more, the run of the unchanged script, and notes.

    Raises:
        InputError: If the script or `vary` cannot be used, or the script allocates nothing on a
            GPU.
        ScriptError: If the unchanged script ends with an error.
    """
    halved = None if vary is None else halving_change(arguments, vary)
    profile = gpu_profile(gpu)
    request = Options(gpu=gpu, conf=conf, allocator=allocator).request(script, arguments)
    path = Path(request.script).resolve()
    room = profile.total_bytes - profile.context_bytes
    attempts = Attempts(request, path, ScriptText.read(path), room)
    (base,) = attempts.run([()])
    assert base.prediction is not None
    if not base.prediction.peak_reserved_bytes:
        raise InputError(
            f"{script} allocates nothing on a GPU with these arguments, so there is nothing to "
            "save; if it needs an argument such as --device cuda, give that after --"
        )
    changes = [*([] if halved is None else [halved]), *_changes(base, attempts.script)]
    advice: list[Advice] = []
    notes: list[str] = []
    for attempt in _tried(attempts, changes[:_MOST_CHANGES]):
        (change,) = attempt.changes
        if attempt.prediction is None:
            notes.append(f"not possible: {change.name}: {attempt.failure}")
        else:
            advice += _advice(change, attempt, base, attempts.script)
    script_run = ScriptRun(
        script=script,
        arguments=[*arguments],
        gpu=base.prediction.gpu,
        peak_allocated_bytes=base.allocated_bytes(),
        peak_reserved_bytes=base.prediction.peak_reserved_bytes,
        fits=_fits(base),
        seems_recorded=_is_alike(base.allocated_bytes(), recorded_bytes, is_whole),
        runs=attempts.count,
    )
    return advice, script_run, notes


def _is_alike(simulated_bytes: int, recorded_bytes: int, is_whole: bool) -> bool:
    """Returns whether the script may be the recorded program, judging by their memory peaks.

    If requests of the recorded program failed, that program ended early, so its peak may be lower
    than the script's.
    """
    if simulated_bytes < recorded_bytes * (1 - _ALIKE):
        return False
    return not is_whole or simulated_bytes <= recorded_bytes * (1 + _ALIKE)


def halving_change(arguments: Sequence[str], vary: str) -> Change:
    """Makes the change that halves the value of a script's argument.

    Raises:
        InputError: If the argument is missing, or its value cannot be halved.
    """
    value, _ = take_out(arguments, vary)
    if value is None:
        raise InputError(f"{vary} is named by --vary, but is not among the script's arguments")
    if value < 2:
        raise InputError(f"{vary} cannot be halved: it is {value}")
    return Change(
        "batch",
        f"halve {vary}",
        arguments=((vary, str(value // 2)),),
        caveat="a step has half the batch",
    )


def _changes(base: Attempt, script: ScriptText) -> Iterator[Change]:
    """Yields the possible changes in the order in which they are tried.

    The first change is the recomputation with the lowest peak. The second splits the batch into two
    parts. Then come all other changes that save enough; those that keep the results come first.
    """
    survey, peak = base.survey, base.allocated_bytes()
    assert survey is not None
    if len(survey.models) == 1 and survey.models[0].recomputations:
        plan = min(survey.models[0].recomputations, key=lambda each: each.peak_bytes)
        yield recomputing_change(survey, plan, peak - plan.peak_bytes)
    yield from list(batch_changes(survey, script))[:1]
    plain = [
        change for change in plain_changes(survey, peak) if change.saves_bytes >= LEAST_SHARE * peak
    ]
    yield from sorted(plain, key=lambda each: (not each.keeps_results, -each.saves_bytes))


def _tried(attempts: Attempts, changes: Sequence[Change]) -> Iterator[Attempt]:
    """Runs each change alone, as many in parallel as memory allows, and yields the results."""
    step = attempts.at_a_time
    for first in range(0, len(changes), step):
        yield from attempts.run([(change,) for change in changes[first : first + step]])


def _advice(change: Change, attempt: Attempt, base: Attempt, script: ScriptText) -> list[Advice]:
    reserved = _reserved_bytes(attempt)
    saves = _reserved_bytes(base) - reserved
    helps = _fits(attempt) and not _fits(base)
    least = LEAST_SHARE * _reserved_bytes(base)
    if not _fits(attempt) or (not helps and saves < max(1, least)):
        return []
    assert attempt.prediction is not None
    return [
        Advice(
            kind="script",
            what=change.name,
            how=_how(change, script),
            cost=_cost(change, attempt, base),
            saves_bytes=0 if helps else saves,
            peak_reserved_bytes=attempt.prediction.peak_reserved_bytes,
            peak_dedicated_bytes=reserved if _spills(attempt) else None,
            serves_failed_requests=True if helps else None,
            note="; ".join(_notes(change, attempt, base)),
        )
    ]


def _how(change: Change, script: ScriptText) -> str:
    """Returns the lines that a change adds, or the arguments that it sets."""
    options = " ".join(f"{name} {value}" for name, value in change.arguments)
    return options or "\n".join(script.added(change.edit(script)))


def _cost(change: Change, attempt: Attempt, base: Attempt) -> AdviceCost:
    if not change.keeps_results:
        return "results"
    if _spills(attempt):
        return "bus"
    times = _times_the_step(attempt, base)
    return "nothing" if times is not None and times <= 1 + LEAST_TIME else "time"


def _notes(change: Change, attempt: Attempt, base: Attempt) -> Iterator[str]:
    times = _times_the_step(attempt, base)
    if times is None:
        yield "how long a step takes then is not known"
    elif abs(times - 1) > LEAST_TIME:
        yield f"{times:.2f} times the step"
    if change.caveat:
        yield f"results differ: {change.caveat}"
    if change.note:
        yield change.note
    if change.allocator is not None:
        yield f"needs plimsoll run --allocator {change.allocator}"


def _times_the_step(attempt: Attempt, base: Attempt) -> float | None:
    """Returns a step's time, divided by its time in the unchanged script; None if unknown."""
    if attempt.step_seconds is None or not base.step_seconds:
        return None
    return attempt.step_seconds / base.step_seconds


def _fits(attempt: Attempt) -> bool:
    """Returns whether the card has all the memory that the run's own allocator needs."""
    return attempt.allocators()[0].fits


def _reserved_bytes(attempt: Attempt) -> int:
    """Returns the most bytes of the card that the run's own allocator reserves."""
    prediction = attempt.prediction
    assert prediction is not None
    if prediction.shared is None or not _spills(attempt):
        return prediction.peak_reserved_bytes
    return prediction.shared.peak_dedicated_bytes


def _spills(attempt: Attempt) -> bool:
    assert attempt.prediction is not None
    return attempt.prediction.shared is not None and attempt.prediction.shared.peak_bytes > 0
