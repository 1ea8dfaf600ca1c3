"""Compares the search for memory-saving changes with a brute-force search, on tiny scripts."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis.strategies import booleans, floats, integers, randoms

from plimsoll.base.units import MiB
from plimsoll.prediction.fitting import sets_to_try
from plimsoll.prediction.fitting.changes.change import SWITCH, Change
from plimsoll.prediction.fitting.plan_search import Search
from tests.unit.tiny_script import Done, TinyAttempts, TinyScript

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plimsoll.prediction.fitting.attempts import Attempt
    from plimsoll.prediction.results import Prediction
    from plimsoll.prediction.survey import AllocatorUse

_MOST_SIMULATIONS = 15
_SCRIPTS = 150


class Heard:
    """Records the trials that a search reports."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, ...]] = []
        self.done: list[Attempt] = []

    def begins(self, names: Sequence[str]) -> None:
        self.begun.append(tuple(names))

    def ended(self, attempt: Attempt) -> None:
        self.done.append(attempt)


def searched(
    script: TinyScript,
    room: int,
    changes: Sequence[Change],
    interrupted_after: int | None = None,
    *,
    refuses: bool = False,
) -> tuple[Search, TinyAttempts, Heard]:
    attempts, heard = TinyAttempts(script, room, interrupted_after, refuses=refuses), Heard()
    search = Search(attempts, room, heard)  # type: ignore[arg-type]
    with (
        patch.object(sets_to_try, "plain_changes", lambda *_: iter(changes)),
        patch.object(sets_to_try, "batch_changes", lambda *_: iter(())),
    ):
        try:
            search.run()
        except KeyboardInterrupt:
            search.settle()
    return search, attempts, heard


class WithSetting(TinyAttempts):
    """Runs a tiny script that also fits, barely, under another setting of PyTorch's allocator."""

    def _attempt(self, changes: tuple[Change, ...]) -> Attempt:
        found = super()._attempt(changes)
        native, elastic = found.allocators()
        setting = replace(
            native, conf="expandable_segments:True", fits=True, within_bytes=self._room
        )
        assert found.survey is not None
        survey = replace(found.survey, allocators=[native, setting, elastic])
        return replace(found, survey=survey)


@pytest.mark.parametrize(("holds", "allocator"), [(True, "native"), (False, "elastic")])
def test_an_unchanged_script_gets_a_setting_of_pytorchs_before_plimsolls_allocator(
    allocator: str, *, holds: bool
) -> None:
    script = replace(script_of(1000), waste=1.5)
    room = 1100 * MiB
    attempts = WithSetting(script, room)

    def verify(changes: tuple[Change, ...], use: AllocatorUse) -> Prediction:
        taken = use.taken_bytes if holds else use.peak_reserved_bytes
        return TinyAttempts.verify(attempts, changes, replace(use, peak_reserved_bytes=taken))

    with patch.object(attempts, "verify", verify):
        search = Search(attempts, room, Heard())  # type: ignore[arg-type]
        search.run()
    assert search.best is not None
    assert search.best.use.allocator == allocator


def changes_of(script: TinyScript, *, guess: float = 1.0) -> list[Change]:
    """Returns the script's changes, each with its largest saving and its approximate cost."""
    return [
        Change(name, name, saves_bytes=max(saved), costs_seconds=script.costs[name] * guess)
        for name, saved in script.saves.items()
    ]


def tiny_script(random: Random, *, has_modules: bool) -> TinyScript:
    """Draws a script that has two or three phases and up to six changes.

    If `has_modules`, the script also has modules that can be recomputed.
    """
    phases = [random.randint(1000, 4000) for _ in range(random.choice((2, 3)))]
    names = [f"change {number}" for number in range(random.randint(1, 6))]
    return TinyScript(
        phases=tuple(size * MiB for size in phases),
        seconds=1.0,
        saves={
            name: tuple(int(random.uniform(0, 0.3) * size) * MiB for size in phases)
            for name in names
        },
        costs={name: random.uniform(-0.02, 0.3) for name in names},
        modules=8 if has_modules else 0,
        module_bytes=phases[0] * MiB // 16,
        module_seconds=random.uniform(0.01, 0.05),
        movable_bytes=phases[0] * MiB * random.randint(0, 5) // 10 if has_modules else 0,
    )


def script_of(*phases: int, **saves: tuple[tuple[int, ...], float]) -> TinyScript:
    """Makes a script whose phases and savings are given in MiB.

    Each of `saves` is a change, given as its savings in each phase and its cost in seconds.
    """
    return TinyScript(
        phases=tuple(size * MiB for size in phases),
        seconds=1.0,
        saves={name: tuple(size * MiB for size in each) for name, (each, _) in saves.items()},
        costs={name: cost for name, (_, cost) in saves.items()},
    )


@settings(max_examples=150, deadline=None)
@given(
    random=randoms(use_true_random=False),
    has_modules=booleans(),
    share=floats(0.2, 1.05),
    guess=floats(0.5, 2.0),
)
def test_no_search_is_long_tries_a_set_twice_or_claims_what_is_wrong(
    random: Random, has_modules: bool, share: float, guess: float
) -> None:
    script = tiny_script(random, has_modules=has_modules)
    room = int(script.allocated(Done()) * share)
    search, attempts, heard = searched(script, room, changes_of(script, guess=guess))
    assert attempts.count <= _MOST_SIMULATIONS
    assert len(set(attempts.ran)) == len(attempts.ran)
    assert heard.done == search.known
    assert len(heard.begun) == len(heard.done)
    if search.best is not None:
        assert script.allocated(Done.by(search.best.attempt.changes)) <= room
        assert search.best.verified.fits
        assert search.best.verified.peak_reserved_bytes <= room


@pytest.mark.parametrize("has_modules", [False, True])
def test_a_plan_is_found_wherever_one_fits_and_is_seldom_much_slower_than_the_fastest(
    has_modules: bool,
) -> None:
    random = Random(1)
    slower = []
    for _ in range(_SCRIPTS):
        script = tiny_script(random, has_modules=has_modules)
        room = int(script.allocated(Done()) * random.uniform(0.3, 1.05))
        changes = changes_of(script, guess=random.uniform(0.5, 2))
        fastest = script.fastest(int(room * 0.98), changes)
        if fastest is None:
            continue
        best = searched(script, room, changes)[0].best
        assert best is not None
        assert best.attempt.step_seconds is not None
        slower.append(best.attempt.step_seconds / fastest)
    assert len(slower) > _SCRIPTS // 2
    assert sum(each <= 1.05 for each in slower) >= 0.9 * len(slower)
    assert max(slower) < 1.5


def test_changes_that_save_only_together_are_built_on() -> None:
    """The script has two equal phases. `first` and `second` each lower only one of them."""
    script = script_of(
        2000, 2000, first=((500, 0), 0.0), second=((0, 500), 0.0), both=((500, 500), 0.2)
    )
    search, _, _ = searched(script, 1050 * MiB, changes_of(script))
    assert search.best is not None
    assert {change.name for change in search.best.attempt.changes} == {"first", "second", "both"}


def test_a_change_that_is_not_needed_is_left_out() -> None:
    script = script_of(2000, 100, large=((1200, 0), 0.1), small=((300, 0), 0.1))
    search, _, _ = searched(script, 1000 * MiB, changes_of(script))
    assert search.best is not None
    assert [change.name for change in search.best.attempt.changes] == ["large"]


def test_the_allocator_that_leaves_more_is_taken_where_pytorchs_leaves_little() -> None:
    script = replace(script_of(2000, 100, large=((1015, 0), 0.1)), waste=1.01)
    search, _, _ = searched(script, 1000 * MiB, changes_of(script))
    assert search.best is not None
    assert search.best.use.allocator == "elastic"
    search, _, _ = searched(script, 1010 * MiB, changes_of(script))
    assert search.best is not None
    assert search.best.use.allocator == "native"


def test_options_of_the_scripts_own_are_preferred_to_a_faster_plan_that_leaves_little() -> None:
    script = script_of(2000, 100, edit=((1020, 0), 0.1), option=((1400, 0), 0.3))
    edit, option = changes_of(script)
    option = replace(option, arguments=(("--checkpoint", SWITCH),))
    for room, taken in ((1100, option), (1200, edit)):
        search, _, _ = searched(script, room * MiB, [edit, option])
        assert search.best is not None
        assert search.best.attempt.changes == (edit,)
        search.prefer_own_options()
        assert search.best.attempt.changes == (taken,)
    lossy = replace(option, caveat="fewer bits")
    search, _, _ = searched(script, 1100 * MiB, [edit, lossy])
    search.prefer_own_options()
    assert search.best is not None
    assert search.best.attempt.changes == (edit,)


def test_what_only_saves_time_is_in_the_plan_too() -> None:
    script = script_of(2000, 100, large=((1200, 0), 0.3), faster=((0, 60), -0.2))
    search, _, _ = searched(script, 1000 * MiB, changes_of(script))
    assert search.best is not None
    assert {change.name for change in search.best.attempt.changes} == {"large", "faster"}


def test_what_a_run_under_the_limit_refutes_is_not_said_to_fit() -> None:
    script = replace(script_of(2000, 100, large=((1100, 0), 0.1)), waste=1.2)
    search, attempts, _ = searched(script, 1000 * MiB, changes_of(script), refuses=True)
    assert search.best is None
    assert any(attempt.fitting() is not None for attempt in search.known)
    assert not any(search.fits(attempt) for attempt in search.known)
    assert attempts.count > len(attempts.ran)


def test_results_stay_what_they_were_where_anything_that_keeps_them_fits() -> None:
    script = script_of(2000, 100, slow=((1200, 0), 0.5), lossy=((1200, 0), -0.5))
    slow, lossy = changes_of(script)
    lossy = Change("lossy", "lossy", caveat="fewer bits", saves_bytes=lossy.saves_bytes)
    search, _, _ = searched(script, 1000 * MiB, [slow, lossy])
    assert search.best is not None
    assert search.best.attempt.changes == (slow,)
    search, _, _ = searched(script, 1000 * MiB, [lossy])
    assert search.best is not None
    assert search.best.attempt.changes == (lossy,)


def test_where_nothing_fits_the_least_that_was_tried_has_all_changes() -> None:
    script = script_of(
        2000, 1900, first=((100, 0), 0.1), second=((200, 100), 0.1), third=((0, 300), 0.1)
    )
    search, _, _ = searched(script, 1000 * MiB, changes_of(script))
    assert search.best is None
    least = min(search.known, key=lambda attempt: attempt.least_bytes())
    assert len(least.changes) == 3


def test_a_floor_is_what_the_elastic_allocator_needs_when_the_script_runs_under_it() -> None:
    script = script_of(2000, 100, first=((200, 0), 0.1), second=((300, 0), 0.1))
    search, attempts, _ = searched(
        replace(script, least=0.9, least_itself=0.95), 1000 * MiB, changes_of(script)
    )
    assert search.best is None
    least = min(search.known, key=lambda attempt: attempt.least_bytes())
    assert len(least.changes) == 2
    assert least.least_use().allocator == "elastic"
    assert least.least_use().least_bytes == int(0.95 * 1500 * MiB)
    assert attempts.count == len(attempts.ran) + 1 <= _MOST_SIMULATIONS


@settings(max_examples=60, deadline=None)
@given(random=randoms(use_true_random=False), after=integers(1, 14))
def test_an_interrupted_search_keeps_the_best_so_far_without_another_run(
    random: Random, after: int
) -> None:
    script = tiny_script(random, has_modules=True)
    room = int(script.allocated(Done()) * 0.8)
    search, attempts, _ = searched(script, room, changes_of(script), interrupted_after=after)
    if attempts.count != after:  # the search ended before the interrupt
        return
    sure = [
        attempt
        for attempt in search.known
        if attempt.allocators()[0].fits and attempt.step_seconds is not None
    ]
    assert (search.best is not None) >= bool(sure)
    if search.best is not None:
        assert search.best.verified.fits
