"""Finds the largest value of an argument with which a script fits a card."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plimsoll.base.errors import InputError
from plimsoll.base.standard_error import stderr_bytes
from plimsoll.prediction.allocator_need import fitting
from plimsoll.prediction.caveats import caveats_of_fit
from plimsoll.prediction.fitting.accepted_steps import accepted_step
from plimsoll.prediction.fitting.bracket import MOST_RUNS, Bracket, Point, Try
from plimsoll.prediction.fitting.headroom import Headroom
from plimsoll.prediction.fitting.parts import Trial
from plimsoll.prediction.fitting.results import Fit
from plimsoll.prediction.fitting.side_by_side import Outcome, run_beside, slots
from plimsoll.prediction.fitting.varied_argument import (
    is_option,
    own_value,
    take_out,
    with_value,
)
from plimsoll.prediction.little_room import cached_bytes, doubt, sure_room_bytes
from plimsoll.prediction.not_kept import each_once
from plimsoll.prediction.options import Options
from plimsoll.prediction.parts import INTERRUPTED
from plimsoll.prediction.step_growth import growth_bytes
from plimsoll.prediction.trials.kept_apart import most_refused
from plimsoll.prediction.trials.temporary_folder import temporary_folder
from plimsoll.prediction.used_memory import used_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from os import PathLike

    from plimsoll.prediction.not_kept import NotKept
    from plimsoll.prediction.request import Request
    from plimsoll.prediction.results import Prediction
    from plimsoll.prediction.trials.kept_apart import KeptApart
    from plimsoll.prediction.trials.written import Written

    Progress = Callable[[int | None, Trial | None], None]

_FIXED = ("parameters", "gradients", "optimizer_state", "workspaces")
"""Kinds of memory that a larger batch does not increase."""
_STEP_TOLERANCE = 4
"""A bound for guessed steps, as a multiple of the search's tolerance.

Some scripts accept only multiples of a number, which plimsoll calls the step. If the script's error
does not name the step, plimsoll guesses the largest step up to the bound that explains the failure.
If there is none, plimsoll guesses the smallest step above the bound. A wrong guess costs two runs.
"""


def fit(
    script: str | PathLike[str],
    vary: str,
    arguments: Sequence[str] = (),
    *,
    module: bool = False,
    gpu: str = "H100",
    start: int | None = None,
    at_most: int | None = None,
    multiple_of: int = 1,
    exact: bool = False,
    headroom: int | str | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Fit:
    """Finds the largest value of `vary` with which a script fits, in at most eight runs.

    The search begins with the script's own value. It estimates each further value from the memory
    that the script took with earlier values. The search ends when a value fits and a value at most
    1 % larger does not. It ends early if memory stops growing, if the script fails with larger
    values, or if the user interrupts it; `Fit.stopped` has the reason. The script's output appears
    on stderr only when the script fails.

    >>> import plimsoll
    >>> plimsoll.fit("train.py", "--batch-size", gpu="RTX 4090").largest  # doctest: +SKIP
    48

    Args:
        script: A Python file, or with `module` a module's name.
        vary: An argument that takes a number: an option such as "--batch-size", a position among
            the script's arguments ("@1" is the first), or an environment variable ("env:BATCH").
        arguments: The script's arguments; the search begins at a value of `vary` among them.
        module: See `predict`.
        gpu: The card.
        start: The first value. The default is the value in `arguments`, else the script's own value
            as `argparse` parsed it, else 1.
        at_most: The largest value to try; None for no bound.
        multiple_of: plimsoll tries only multiples of this number. If the script fails because it
            accepts only multiples of another number, plimsoll finds that number from the failure.
        exact: Whether to search on until the next value, or the next allowed multiple, does not
            fit. This may take more than eight runs.
        headroom: The memory that must stay free, such as "2GiB" or "5%" of the card.
        progress: Called before each try with the value and None, and after it with the value and
            the result. Before a run with the script's own value both arguments are None, because
            plimsoll learns this value from the run.
        options: The options of `predict`.

    Raises:
        InputError: If an argument is bad, or memory does not depend on `vary`.
        ScriptError: If the script fails for a reason other than memory, before any run has shown
            how much memory the script takes.
    """
    if multiple_of < 1 or not 1 <= (1 if start is None else start) <= (at_most or sys.maxsize):
        raise InputError("the values to try begin at 1 or above, and end where they begin or above")
    if at_most is not None and at_most < max(multiple_of, 1):
        raise InputError("the values to try begin at 1 or above, and end where they begin or above")
    own, others = take_out(arguments, vary)
    asked = Options(gpu=gpu, **options)
    request = replace(asked, used=used_memory(asked.used)).request(script, others, is_module=module)
    search = _Search(
        replace(request, finds_least=True),
        vary,
        Bracket(step=multiple_of, at_most=at_most, is_exact=exact),
        Headroom.parse(headroom),
        progress or (lambda *_: None),
    )
    try:
        search.run(own if start is None else start)
    except KeyboardInterrupt:
        if search.last is None:
            raise
        search.stopped = INTERRUPTED
    return search.result()


class _Search:
    """Runs the script with values that a `Bracket` chooses, and tells the bracket the results.

    Attributes:
        last: The latest prediction; None before the first.
        stopped: Why the search ended early.
    """

    def __init__(
        self, request: Request, vary: str, bracket: Bracket, headroom: Headroom, progress: Progress
    ) -> None:
        self._request = request
        self._vary = vary
        self._bracket = bracket
        self._headroom = headroom
        self._progress = progress
        self._slots = slots(request, most=2)  # more would not help: most runs need earlier results
        self._trials: dict[int, Trial] = {}
        self._written: list[Written] = []
        self._kept_apart: KeptApart | None = None
        self._not_kept: list[NotKept] = []
        self._seconds = 0.0
        self.last: Prediction | None = None
        self.stopped: str | None = None

    def run(self, start: int | None) -> None:
        """Runs tries until the bracket has none left, or memory stops growing."""
        if start is None and self._request.nproc_per_node is None and is_option(self._vary):
            start = self._try_own()
        bracket = self._bracket
        if not bracket.points:
            self._try(bracket.first(start or 1, self._slots))
        while tries := bracket.next(self._slots):
            same = bracket.same_since
            if same is not None:
                self._end_where_nothing_grows(same)
                return
            self._try(tries)

    def result(self) -> Fit:
        """Returns the result of the search."""
        assert self.last is not None
        bracket, low = self._bracket, self._bracket.low
        too_much = [
            v
            for v, each in self._trials.items()
            if v > low and each.fits is False and (each.error is None or v in bracket.broken)
        ]
        failing = min(too_much, default=None)
        doubtful = [
            v
            for v, each in self._trials.items()
            if each.is_doubtful and low < v < (failing or sys.maxsize)
        ]
        return Fit(
            gpu=self.last.gpu,
            vary=self._vary,
            largest=low or None,
            smallest_failing=failing,
            stopped=self.stopped or self._why(),
            multiple_of=bracket.step,
            total_bytes=self.last.total_bytes,
            used_bytes=self.last.used_bytes,
            headroom_bytes=self._headroom.of(self.last.total_bytes + self.last.used_bytes),
            curve=[self._trials[value] for value in sorted(self._trials)],
            seconds=self._seconds,
            written=_largest(self._written),
            kept_apart=self._kept_apart,
            not_kept=self._not_kept,
            world_size=self.last.world_size,
            may_fit=max(doubtful, default=None),
        )

    def _why(self) -> str | None:
        """Returns why the search ended without an exact answer; None if it found one."""
        bracket, high = self._bracket, self._bracket.high
        if high is not None and high in bracket.broken:
            return f"with {self._vary} {high} the script fails"
        if bracket.is_closed:
            return None
        if bracket.is_at_bound:
            return f"--at-most {bracket.at_most} ends the search"
        return f"plimsoll stops after {MOST_RUNS} runs"

    def _end_where_nothing_grows(self, same: int) -> None:
        most = max(each.value for each in self._bracket.points)
        if same == min(each.value for each in self._bracket.points):
            raise InputError(
                f"memory does not depend on {self._vary}: the values {same} to {most} need the same"
            )
        self.stopped = f"memory is the same from {self._vary} {same} on"

    def _try_own(self) -> int | None:
        """Runs the unchanged script, and returns its own value of `vary`; None if unknown."""
        with temporary_folder() as folder:
            survey = folder / "survey.json"
            self._progress(None, None)
            varied = self._vary if is_option(self._vary) else None
            request = replace(self._request, survey=str(survey), varied=varied)
            (outcome,) = run_beside([request], lambda *_: None)
            _check_option(outcome)
            value = own_value(survey, self._vary)
        if outcome.found is not None:
            self._check_use(outcome.found)
            if value is not None:
                self._note(Try(value), outcome.found)
                self._progress(value, self._trials[value])
                return value
        self._bracket.other_runs += 1
        # An error of this run is ignored. If the script's own value is not the cause, the next run,
        # with another value, fails too.
        return None

    def _try(self, tries: list[Try]) -> None:
        def ended(number: int, outcome: Outcome) -> None:
            each = tries[number]
            if outcome.found is not None:
                self._check_use(outcome.found)
                self._note(each, outcome.found)
            else:
                self._trials[each.value] = _failed(each.value, outcome)
            self._progress(each.value, self._trials[each.value])

        for each in tries:
            self._progress(each.value, None)
        outcomes = run_beside([self._asked(each) for each in tries], ended)
        for each, outcome in zip(tries, outcomes, strict=True):
            if outcome.error is not None:
                self._learn(each.value, outcome)

    def _asked(self, each: Try) -> Request:
        request = self._request
        setup = replace(request.setup, unlimited=True) if each.scouts else request.setup
        return with_value(replace(request, setup=setup), self._vary, each.value)

    def _check_use(self, found: Prediction) -> None:
        if not found.uses_cuda:
            raise InputError(str(found).splitlines()[0].removesuffix("."))

    def _note(self, each: Try, found: Prediction) -> None:
        point = self._point(each, found)
        self._bracket.points.append(point)
        self.last = found
        self._written += found.written
        self._kept_apart = most_refused(self._kept_apart, found.kept_apart)
        self._not_kept = each_once([self._not_kept, found.not_kept])
        self._seconds += found.seconds
        fits = self._fits(each, found)
        is_measured = found.fits is not False
        used = found.device_used_bytes
        if found.needs and not found.needs[0].fits:
            used = found.needs[0].card_bytes
        headroom = found.headroom_bytes + found.device_used_bytes - used
        wanted = self._headroom.of(found.total_bytes + found.used_bytes)
        trial = Trial(
            value=each.value,
            fits=fits,
            device_used_bytes=used,
            step_seconds=found.step_seconds if fits else None,
            headroom_bytes=headroom if is_measured else None,
            host_peak_bytes=found.host_peak_bytes,
            host_peak_range_bytes=found.host_peak_range_bytes,
            growth_bytes=growth_bytes(found.step_peaks_bytes),
            steps=len(found.step_peaks_bytes),
            samples_per_second=found.samples_per_second if fits else None,
            why_unknown=found.why_unknown if found.fits is None else None,
            caveats=list(caveats_of_fit(found)),
            may_not_fit=fits is True and doubt(found) is not None,
            fits_with=[
                need
                for need in fitting(found.needs)
                if not wanted or need.card_bytes + wanted <= found.total_bytes
            ],
        )
        before = self._trials.get(each.value)
        if before is not None and before.headroom_bytes is not None and not is_measured:
            # The earlier run, with unlimited memory, shows how much memory the script takes.
            known = ("device_used_bytes", "headroom_bytes", "host_peak_bytes",
                     "host_peak_range_bytes", "growth_bytes", "steps", "fits_with")  # fmt: skip
            trial = replace(trial, **{name: getattr(before, name) for name in known})
        self._trials[each.value] = trial

    def _fits(self, each: Try, found: Prediction) -> bool | None:
        """Returns whether the script fits by the estimates, and leaves the wanted headroom."""
        if found.fits is None:
            return None
        needed = self._headroom.of(found.total_bytes + found.used_bytes)
        fits = found.fits and found.headroom_bytes >= needed
        if not each.scouts or (fits and not found.shared and not found.shared_cards):
            return fits
        # This trial had unlimited memory, so it does not show whether the value fits. With the
        # card's real memory PyTorch would release cached memory, or other processes would take a
        # part of the card.
        cached = 0 if needed else cached_bytes(found)
        bounds = found.device_used_range_bytes
        at_least = found.device_used_bytes if bounds is None else bounds[0]
        room = found.headroom_bytes - needed + cached + found.device_used_bytes - at_least
        return False if found.fits and room < 0 else None

    def _point(self, each: Try, found: Prediction) -> Point:
        needed = self._headroom.of(found.total_bytes + found.used_bytes)
        is_sure = bool(found.fits) and found.headroom_bytes >= needed and doubt(found) is None
        fits: bool | None = is_sure
        if each.scouts and (not is_sure or found.shared is not None or found.shared_cards):
            fits = None
        spare = sure_room_bytes(found, 0 if needed else cached_bytes(found)) - needed
        if found.fits is False or (found.fits is None and spare >= 0):
            return Point(each.value, fits, is_scout=each.scouts)
        fixed = sum(found.by_category.get(name, 0) for name in _FIXED)
        varying = max(found.peak_reserved_bytes - fixed, 0)
        asked = found.requested_bytes
        return Point(each.value, fits, spare, varying, asked, is_scout=each.scouts)

    def _learn(self, value: int, outcome: Outcome) -> None:
        """Learns from a failure which multiples are accepted, or that the value is too large."""
        assert outcome.error is not None
        bracket = self._bracket
        if value % bracket.step:  # a parallel run has raised `step`, so this failure is explained
            bracket.other_runs += 1
            return
        accepted = {each.value for each in bracket.points}
        step = accepted_step(
            outcome.error.reason,
            value,
            accepted,
            step=bracket.step,
            tolerance=_STEP_TOLERANCE * bracket.tolerance(value),
        )
        if step is not None:
            bracket.step = step
            bracket.other_runs += 1
            return
        if not bracket.broken:
            stderr_bytes().write(outcome.output)
            sys.stderr.flush()
        if not any(each.spare_bytes is not None for each in bracket.points):
            raise outcome.error
        bracket.broken.add(value)


def _check_option(outcome: Outcome) -> None:
    """Raises InputError if the script ended because it has no such option."""
    reason = (outcome.error and outcome.error.reason) or ""
    name, _, text = reason.partition(": ")
    if name == "NoSuchOptionError":
        raise InputError(text.rpartition(" (")[0] or text)


def _failed(value: int, outcome: Outcome) -> Trial:
    assert outcome.error is not None
    why = outcome.error.reason or f"it ended with status {outcome.error.status}"
    return Trial(value, fits=False, device_used_bytes=None, step_seconds=None, error=why)


def _largest(all_written: Iterable[Written]) -> list[Written]:
    """Keeps the largest file of each path. Returns these files sorted, the largest first."""
    largest: dict[str, Written] = {}
    for one in all_written:
        before = largest.get(one.path)
        if before is None or before.bytes < one.bytes:
            largest[one.path] = one
    return sorted(largest.values(), key=lambda one: (-one.bytes, one.path))
