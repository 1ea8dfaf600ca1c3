"""Searches over changes to a tiny script: against the best of all sets, by trying every one."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis.strategies import composite, floats, integers, lists, tuples

from plimsoll.fitting import plan_search
from plimsoll.fitting.changes.change import Change
from plimsoll.fitting.plan_search import Search
from plimsoll.units import MiB
from tests.unit.tiny_script import Done, TinyAttempts, TinyScript

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hypothesis.strategies import DrawFn

    from plimsoll.fitting.attempts import Attempt

_MOST_SIMULATIONS = 15
_ENOUGH = 1.05
"""A plan is good enough that takes so much of the time of the fastest one."""


class Heard:
    """What a search tells of its trials."""

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
) -> tuple[Search, TinyAttempts, Heard]:
    attempts, heard = TinyAttempts(script, room, interrupted_after), Heard()
    search = Search(attempts, room, heard)  # type: ignore[arg-type]
    with (
        patch.object(plan_search, "plain_changes", lambda *_: iter(changes)),
        patch.object(plan_search, "batch_changes", lambda *_: iter(())),
    ):
        if interrupted_after is None:
            search.run()
        else:
            with pytest.raises(KeyboardInterrupt):
                search.run()
            search.settle()
    return search, attempts, heard


def changes_of(script: TinyScript, *, guess: float = 1.0) -> list[Change]:
    """As their authors know them: what they save at most, and about what they cost."""
    return [
        Change(name, name, saves_bytes=max(saved), costs_seconds=script.costs[name] * guess)
        for name, saved in script.saves.items()
    ]


@composite
def tiny_scripts(draw: DrawFn, modules: int = 0) -> TinyScript:
    phases = draw(lists(integers(1000, 4000), min_size=2, max_size=3))
    shares = lists(floats(0, 0.3), min_size=len(phases), max_size=len(phases))
    drawn = draw(lists(tuples(shares, floats(-0.02, 0.3)), min_size=1, max_size=6))
    names = [f"change {number}" for number in range(len(drawn))]
    return TinyScript(
        phases=tuple(size * MiB for size in phases),
        seconds=1.0,
        saves={
            name: tuple(int(share * size) * MiB for share, size in zip(each, phases, strict=True))
            for name, (each, _) in zip(names, drawn, strict=True)
        },
        costs={name: cost for name, (_, cost) in zip(names, drawn, strict=True)},
        modules=modules,
        module_bytes=phases[0] * MiB // (2 * max(modules, 1)),
        module_seconds=draw(floats(0.01, 0.05)),
        movable_bytes=phases[0] * MiB * draw(integers(0, 5)) // 10 if modules else 0,
    )


class TestAgainstAllSets:
    """What is found is held against the best of all sets."""

    @settings(max_examples=150, deadline=None)
    @given(script=tiny_scripts(), share=floats(0.3, 1.05), guess=floats(0.5, 2.0))
    def test_plain_changes(self, script: TinyScript, share: float, guess: float) -> None:
        self.check(script, share, guess)

    @settings(max_examples=100, deadline=None)
    @given(script=tiny_scripts(modules=8), share=floats(0.3, 1.0), guess=floats(0.5, 2.0))
    def test_changes_beside_modules_that_are_computed_again(
        self, script: TinyScript, share: float, guess: float
    ) -> None:
        self.check(script, share, guess)

    def check(self, script: TinyScript, share: float, guess: float) -> None:
        room = int(script.allocated(Done()) * share)
        changes = changes_of(script, guess=guess)
        search, attempts, heard = searched(script, room, changes)
        assert attempts.count <= _MOST_SIMULATIONS
        assert len(set(attempts.ran)) == len(attempts.ran)  # nothing twice
        assert heard.done == search.known
        fastest = script.fastest(int(room * 0.98), changes)
        if search.best is None:
            assert fastest is None
            return
        assert search.best.verified.peak_reserved_bytes <= room
        assert search.best.verified.fits
        found = search.best.attempt.step_seconds
        assert found is not None
        if fastest is not None:
            assert found <= _ENOUGH * fastest
