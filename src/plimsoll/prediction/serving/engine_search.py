"""Searches the values of one option, or the cards, by running an engine with them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from plimsoll.base.errors import InputError
from plimsoll.prediction.parts import INTERRUPTED
from plimsoll.prediction.recipes.served import given
from plimsoll.prediction.serving.bisection import MOST_RUNS, Bisection
from plimsoll.prediction.serving.engine_trials import with_settings
from plimsoll.prediction.serving.parts import CARD, EngineBorder
from plimsoll.prediction.serving.trial_ends import (
    is_too_little,
    longest_request,
    named_limit,
    own_value,
    why_hopeless,
)
from plimsoll.prediction.serving.varied_options import LENGTH, PARALLEL, PERCENT, SHARE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plimsoll.prediction.serving.engine_trials import EngineTrials
    from plimsoll.prediction.serving.parts import EngineTrial


@dataclass(frozen=True)
class Bounds:
    """The values of an option that may be tried.

    Attributes:
        start: The first value to try; None for the command's own value, or else the engine's
            default.
        at_most: The largest value; None for no bound.
        multiple_of: Only multiples of this number are tried.
        is_exact: Whether the search continues until the answer and the smallest failing value are
            neighbouring multiples of `multiple_of`.
    """

    start: int | None = None
    at_most: int | None = None
    multiple_of: int = 1
    is_exact: bool = False


class EngineSearch:
    """Runs an engine to find an option's best value, or the smallest card, with which it serves.

    After an interrupt a search returns the result so far.

    Args:
        trials: Runs the engine.
        bounds: The values that may be tried.

    Attributes:
        is_interrupted: Whether the user ended a search, so that no further search should begin.
    """

    def __init__(self, trials: EngineTrials, bounds: Bounds) -> None:
        self.is_interrupted = False
        self._trials = trials
        self._bounds = bounds

    def alone(self, gpu: str, settings: Mapping[str, str]) -> EngineBorder:
        """Runs the engine once, with these settings."""
        try:
            trial = self._trials.run(gpu, settings)
        except KeyboardInterrupt:
            return self._interrupted(None, settings, None, None)
        return _border(None, settings, trial if trial.fits else None, trial, _why_open(trial))

    def largest(self, gpu: str, vary: str, settings: Mapping[str, str]) -> EngineBorder:
        """Finds the largest value of an option with which the engine serves.

        The search ends early if a trial does not show whether the engine serves. As long as no
        value has served, the search also ends if the engine fails for a reason other than lack of
        memory, or if a trial shows that no value can help. The result's `beyond` is then the trial
        that ended the search.

        Raises:
            InputError: If the first value is unknown.
        """
        tried: dict[int, EngineTrial] = {}
        try:
            return self._bisected(gpu, vary, settings, tried)
        except KeyboardInterrupt:
            return self._interrupted(vary, settings, *_around(tried))

    def least(self, gpu: str, settings: Mapping[str, str], counts: Sequence[int]) -> EngineBorder:
        """Tries the tensor-parallel sizes in `counts`, in order, until the engine serves."""
        beyond = None
        try:
            for count in counts:
                trial = self._trials.run(gpu, {**settings, PARALLEL: str(count)})
                if trial.fits:
                    return _border(PARALLEL, settings, trial, beyond)
                beyond = trial
                if trial.fits is None:
                    break
        except KeyboardInterrupt:
            return self._interrupted(PARALLEL, settings, None, beyond)
        return _border(
            PARALLEL, settings, None, beyond, None if beyond is None else _why_open(beyond)
        )

    def smallest_card(self, cards: Sequence[str], settings: Mapping[str, str]) -> EngineBorder:
        """Finds the smallest card on which the engine serves, by bisection.

        The search leaves out cards on which a trial does not show whether memory suffices. That
        happens, for example, if the engine lacks a kernel for the card.

        Args:
            cards: The cards, the smallest first.
            settings: The options that the search sets.
        """
        left = list(cards)
        best: EngineTrial | None = None
        beyond: EngineTrial | None = None
        low, high = -1, len(left)
        failed: EngineTrial | None = None
        try:
            while high - low > 1:
                middle = (low + high) // 2
                trial = self._trials.run(left[middle], settings)
                if trial.error is not None or trial.fits is None:
                    failed = trial
                    del left[middle]
                    high -= 1
                elif trial.fits:
                    best, high = trial, middle
                else:
                    beyond, low = trial, middle
        except KeyboardInterrupt:
            return self._interrupted(CARD, settings, best, beyond)
        if best is None and beyond is None and failed is not None:
            why = failed.error or "it is not known whether the engine serves"
            return _border(CARD, settings, None, failed, f"on all cards: {why}")
        return _border(CARD, settings, best, beyond)

    def _bisected(
        self, gpu: str, vary: str, settings: Mapping[str, str], tried: dict[int, EngineTrial]
    ) -> EngineBorder:
        scale = PERCENT if vary == SHARE else 1
        at_most = PERCENT if vary == SHARE else self._bounds.at_most
        start, own = self._first(gpu, vary, settings)
        if start is None:
            assert own is not None
            why = _why_open(own) or why_hopeless(own, vary)
            return _border(vary, settings, None, own, why)
        if own is not None and vary == LENGTH:  # the engine's default is the most the model allows
            at_most = round(min(start, at_most or start))
        numbers = Bisection(
            round(start * scale),
            step=self._bounds.multiple_of,
            at_most=at_most,
            is_exact=self._bounds.is_exact or vary == SHARE,
            is_near=vary == SHARE,
        )
        while (number := numbers.next()) is not None:
            text = f"{number / scale:g}" if vary == SHARE else str(number)
            if own is not None and number == round(start * scale):
                trial = replace(own, settings={**settings, vary: text})
            else:
                trial = self._trials.run(gpu, {**settings, vary: text})
            serves_once = any(each.fits for each in tried.values())
            if not serves_once and (why := _why_open(trial)) is not None:
                return _border(vary, settings, None, trial, f"with {vary} {text} {why}")
            if not serves_once and (why := why_hopeless(trial, vary)) is not None:
                return _border(vary, settings, None, trial, why)
            if trial.fits is None:
                return _border(vary, settings, _around(tried)[0], trial, _why_open(trial))
            tried[number] = trial
            is_too_much = not trial.fits and not is_too_little(trial, vary)
            hint = longest_request(trial) or named_limit(trial, numbers.low, number)
            numbers.learn(number, is_too_much=is_too_much, hint=hint)
            if trial.error is not None and hint == numbers.low:
                break
        best, beyond = _around(tried)
        stopped = self._why(vary, numbers, beyond, is_models=own is not None)
        return _border(vary, settings, best, beyond, stopped)

    def _first(
        self, gpu: str, vary: str, settings: Mapping[str, str]
    ) -> tuple[float | None, EngineTrial | None]:
        """Returns the first value to try, and the trial that showed this value.

        If the user set a value, the search begins with it, and the trial is None. Otherwise the
        search begins with the engine's default, which a trial shows. The value is None if the trial
        shows that no value can help, or if it does not show whether memory suffices.
        """
        text = given(with_settings(self._trials.arguments, settings), vary)
        if self._bounds.start is not None:
            return self._bounds.start, None
        if text is not None:
            return _number(vary, text), None
        own = self._trials.run(gpu, settings)
        if _why_open(own) is not None:
            return None, own
        value = own_value(own, vary)
        if value is None and why_hopeless(own, vary) is None:
            raise InputError(f"the engine's own {vary} is not known; --start N says where to begin")
        return value, own

    def _why(
        self, vary: str, numbers: Bisection, beyond: EngineTrial | None, *, is_models: bool
    ) -> str | None:
        """Returns why a search ended without an exact answer; None if it found one."""
        if beyond is not None and beyond.error is not None:
            return f"with {beyond.settings[vary]} the engine fails: {beyond.error}"
        if numbers.is_closed:
            return None
        if numbers.is_at_bound:
            if vary == SHARE:
                return "it is the whole card"
            if vary == LENGTH and is_models:
                return "the model allows no more"
            return f"--at-most {self._bounds.at_most} ends the search"
        return f"plimsoll stops after {MOST_RUNS} runs"

    def _interrupted(
        self,
        vary: str | None,
        settings: Mapping[str, str],
        best: EngineTrial | None,
        beyond: EngineTrial | None,
    ) -> EngineBorder:
        self.is_interrupted = True
        return _border(vary, settings, best, beyond, INTERRUPTED)


def _border(
    vary: str | None,
    settings: Mapping[str, str],
    best: EngineTrial | None,
    beyond: EngineTrial | None,
    stopped: str | None = None,
) -> EngineBorder:
    beyond = None if beyond is best else beyond
    return EngineBorder(vary, {**settings}, best, beyond, stopped)


def _why_open(trial: EngineTrial) -> str | None:
    """Returns why a trial does not show whether memory suffices; None if it shows that."""
    if trial.error is not None:
        return f"the engine fails: {trial.error}"
    return "it is not known whether the engine serves" if trial.fits is None else None


def _around(tried: Mapping[int, EngineTrial]) -> tuple[EngineTrial | None, EngineTrial | None]:
    """Returns two trials: of the largest value that serves, and of the next larger tried value."""
    low = max((number for number, trial in tried.items() if trial.fits), default=0)
    high = min((number for number, trial in tried.items() if number > low), default=None)
    return tried.get(low), None if high is None else tried[high]


def _number(vary: str, text: str) -> float:
    try:
        value = float(text) if vary == SHARE else int(text)
    except ValueError:
        value = 0
    if value <= 0:
        raise InputError(f"{vary} needs a first value to vary: a number above zero, not {text!r}")
    return value
