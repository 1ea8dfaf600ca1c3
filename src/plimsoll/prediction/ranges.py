"""Finds the range of a prediction if sizes depend on data whose values are not computed.

plimsoll runs the script on the simulated GPU twice more: once with the values that give the
smallest sizes, once with the values that give the largest. Such a run is called a trial.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from plimsoll.base.errors import ScriptError
from plimsoll.prediction.assumed import LETS_GO_LATER, NEEDS_TRIALS
from plimsoll.prediction.child_process import run, started
from plimsoll.prediction.little_room import range_more_bytes
from plimsoll.prediction.rank_use import alike, with_ranges

if TYPE_CHECKING:
    from plimsoll.prediction.request import Request
    from plimsoll.prediction.reruns import Reruns
    from plimsoll.prediction.results import Prediction
    from plimsoll.torch.simulated.setup import UnknownName

_ENDS: tuple[UnknownName, ...] = ("most", "least")
_SIZES = {"most": "largest", "least": "smallest"}
_FOR_RANGE = "for the range of its peak"


def with_range(request: Request, found: Prediction, reruns: Reruns) -> Prediction:
    """Returns the prediction, with ranges of its figures if sizes depend on unknown data.

    A range covers all contents that the data can have. To find it, plimsoll runs two trials:
    one with the contents that give the smallest sizes, one with those that give the largest.

    Args:
        request: The request.
        found: The request's prediction.
        reruns: Tells which trial is under way.
    """
    if request.setup.unknown != "balanced" or not found.needs_trials:
        return found
    began = time.perf_counter()
    trials = [found, *(_of_alike(request, found, reruns) or _in_full(request, reruns))]
    ranks = with_ranges(found.ranks, [trial.ranks for trial in trials])
    seconds = found.seconds + time.perf_counter() - began
    worst = next((use for use in ranks if use.rank == found.worst_rank), None)
    if worst is not None:
        return replace(
            found,
            ranks=ranks,
            peak_allocated_range_bytes=worst.peak_allocated_range_bytes,
            peak_reserved_range_bytes=worst.peak_reserved_range_bytes,
            seconds=seconds,
        )
    allocated = [
        trial.peak_allocated_range_bytes or (trial.requested_bytes, trial.peak_allocated_bytes)
        for trial in trials
    ]
    reserved = [
        trial.peak_reserved_range_bytes or (trial.peak_reserved_bytes, trial.peak_reserved_bytes)
        for trial in trials
    ]
    return replace(
        found,
        ranks=ranks,
        peak_allocated_range_bytes=(min(allocated)[0], max(most for _, most in allocated)),
        peak_reserved_range_bytes=(min(reserved)[0], max(most for _, most in reserved)),
        seconds=seconds,
    )


def with_doubtful_cards(found: Prediction) -> Prediction:
    """Returns the prediction; other cards that the largest peak exceeds get `may_not_fit`."""
    more = range_more_bytes(found)
    if not more:
        return found
    cards = [
        replace(card, may_not_fit=card.may_not_fit or (card.fits and card.headroom_bytes < more))
        for card in found.other_cards
    ]
    return replace(found, other_cards=cards)


def _at_end(request: Request, unknown: UnknownName) -> Request:
    setup = replace(request.setup, unknown=unknown, unlimited=True)
    return replace(request, setup=setup, record=None)


def _in_full(request: Request, reruns: Reruns) -> list[Prediction]:
    trials = []
    for unknown in _ENDS:
        reruns.begin(f"with the data that gives the {_SIZES[unknown]} sizes, {_FOR_RANGE}")
        with suppress(ScriptError):  # the script can fail with made-up data
            trials.append(run(_at_end(request, unknown), shows_output=False))
    return trials


def _of_alike(request: Request, found: Prediction, reruns: Reruns) -> list[Prediction] | None:
    """Runs both trials in parallel, each with one rank of every group of equal ranks.

    Ranks are equal if their figures in `found` are equal. The trials run under three conditions:

    - The script is a job with equal ranks.
    - Only the timing of NCCL's watchdog makes sizes uncertain. Both trials then compute with the
      same data.
    - The script's writes are not kept. Otherwise one trial would read the files of the other.

    Returns None if the trials do not run, or if the script fails in one of them, for example
    because a rank waits for a rank that does not run.
    """
    depends = {assumed.what for assumed in found.assumptions} & set(NEEDS_TRIALS)
    groups = alike(found.ranks)
    is_job = request.nproc_per_node is not None  # only then can plimsoll leave out ranks
    is_worth_it = is_job and len(groups) < len(found.ranks) and not request.keep_writes
    if depends != {LETS_GO_LATER} or not is_worth_it:
        return None
    asked = replace(request, ranks=[group[0] for group in groups])
    reruns.begin(f"with one rank of each kind, {_FOR_RANGE}", runs=len(_ENDS))
    with ExitStack() as stack, suppress(ScriptError):
        answers = [
            stack.enter_context(started(_at_end(asked, unknown), shows_output=False, is_aside=True))
            for unknown in _ENDS
        ]
        return [_spread(answer(), groups) for answer in answers]
    return None


def _spread(trial: Prediction, groups: list[list[int]]) -> Prediction:
    """Returns the trial with each rank's figures copied to all ranks of its group."""
    like = {group[0]: group for group in groups}
    ranks = [replace(use, rank=rank) for use in trial.ranks for rank in like.get(use.rank, [])]
    return replace(trial, ranks=ranks)
