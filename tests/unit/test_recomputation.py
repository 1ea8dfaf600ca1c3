"""Tests the choice of modules to recompute.

The choice must cost the least time for what it saves, and its predicted peak must be right.
"""

from __future__ import annotations

from itertools import chain, combinations
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plimsoll.base.units import MiB
from plimsoll.prediction.child.survey.recomputation import Call, modules_by_name, recomputations
from plimsoll.recordings.analysis.lifetimes import Lifetimes

if TYPE_CHECKING:
    from plimsoll.prediction.survey import Recomputation


class Program:
    """Makes up a training step, event by event: allocations, frees, and calls of modules."""

    def __init__(self) -> None:
        # start, end and size; a block's address is its index plus 1
        self.blocks: list[list[int]] = []
        self.events = 0
        self.calls: list[tuple[str, bool, Call, str | None]] = []

    def allocate(self, size: int) -> int:
        self.blocks.append([self.events, -1, size])
        self.events += 1
        return len(self.blocks) - 1

    def free(self, block: int) -> None:
        self.blocks[block][1] = self.events
        self.events += 1

    def layer(
        self, name: str, keeps: int, result: int, seconds: float, given: int | None
    ) -> tuple[int, int]:
        """Calls a module that keeps one block and returns another. Returns both blocks."""
        start = self.events
        kept, output = self.allocate(keeps), self.allocate(result)
        of = frozenset() if given is None else frozenset({given + 1})
        call = Call(start, self.events, seconds, -1, of, frozenset({output + 1}))
        self.calls.append((name, True, call, None))
        return kept, output

    def lifetimes(self) -> Lifetimes:
        start, end, size = (
            np.array(column, dtype=np.int64) for column in zip(*self.blocks, strict=True)
        )
        end[end < 0] = self.events
        nothing = np.zeros(len(start), dtype=np.uint64)
        return Lifetimes(
            event_count=self.events, start=start, end=end, completed=end,
            address=np.arange(1, len(start) + 1, dtype=np.uint64), size=size.astype(np.uint64),
            shared=nothing, stream=nothing, stack=nothing.astype(np.uint32),
            pool=nothing.astype(np.uint32),
        )  # fmt: skip

    def plans(self, backward: int) -> list[Recomputation]:
        calls = [
            (name, may, Call(c.start, c.end, c.seconds, backward, c.given, c.results), parent)
            for name, may, c, parent in self.calls
        ]
        blocks = self.lifetimes()
        return recomputations(modules_by_name(calls), blocks, blocks.size, 0, self.events)


def chained(sizes: list[tuple[int, float]], result: int = 1) -> tuple[Program, int]:
    """Returns a program, and the event at which its backward pass begins.

    The program calls layers in a row. Its backward pass frees the layers' blocks in reverse order.

    Args:
        sizes: The MiB that each layer keeps, and the seconds that it takes.
        result: The MiB of each layer's result.
    """
    program = Program()
    held: list[tuple[int, int]] = []
    before = None
    for number, (keeps, seconds) in enumerate(sizes):
        held.append(program.layer(str(number), keeps * MiB, result * MiB, seconds, before))
        before = held[-1][1]
    backward = program.events
    for kept, output in reversed(held):
        program.free(output)
        program.free(kept)
    return program, backward


def test_the_layer_that_keeps_the_most_for_its_time_is_the_first() -> None:
    program, backward = chained([(10, 1.0), (40, 1.0), (10, 1.0)])
    plans = program.plans(backward)
    assert plans[0].modules == ["1"]
    assert plans[0].seconds == 1.0
    assert [len(plan.modules) for plan in plans] == sorted(len(plan.modules) for plan in plans)


def test_of_layers_that_are_alike_the_early_ones_are_computed_again() -> None:
    program, backward = chained([(10, 1.0)] * 4)
    assert [plan.modules for plan in program.plans(backward)][:2] == [["0"], ["0", "1"]]


def test_peaks_are_those_of_the_moments_and_not_of_sums() -> None:
    program, backward = chained([(10, 1.0)] * 4)
    peaks = {tuple(plan.modules): plan.peak_bytes for plan in program.plans(backward)}
    # At the peak, the four layers' results of 1 MiB are live, and 10 MiB for each layer that is not
    # recomputed. The recomputed layers add nothing to the peak, because the program recomputes one
    # layer at a time, when the memory of the layers after it is free.
    assert peaks[("0",)] == (4 + 3 * 10) * MiB
    assert peaks[("0", "1")] == (4 + 2 * 10) * MiB
    assert min(peaks.values()) < (4 + 2 * 10) * MiB


def test_what_a_layer_is_given_stays_until_it_is_computed_again() -> None:
    program = Program()
    given = program.allocate(8 * MiB)
    kept, output = program.layer("0", 8 * MiB, MiB, 1.0, given)
    program.free(given)
    other = program.allocate(MiB)
    backward = program.events
    for block in (other, output, kept):
        program.free(block)
    assert program.plans(backward) == []


def test_modules_within_a_module_are_an_alternative_to_it() -> None:
    program = Program()
    start = program.events
    big, out_1 = program.layer("block.big", 30 * MiB, MiB, 0.1, None)
    slow, out_2 = program.layer("block.slow", 10 * MiB, MiB, 5.0, out_1)
    call = Call(start, program.events, 5.1, -1, frozenset(), frozenset({out_2 + 1}))
    inner = [(name, may, each, "block") for name, may, each, _ in program.calls]
    program.calls = [("block", True, call, None), *inner]
    backward = program.events
    for block in (out_2, slow, out_1, big):
        program.free(block)
    assert program.plans(backward)[0].modules == ["block.big"]


def test_modules_that_keep_nothing_are_no_choice() -> None:
    program = Program()
    start = program.events
    for block in [program.allocate(MiB), program.allocate(MiB)]:
        program.free(block)
    program.calls.append(("0", True, Call(start, 4, 1.0, -1, frozenset(), frozenset()), None))
    program.allocate(MiB)
    assert program.plans(4) == []


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 9).map(float)), min_size=1, max_size=6)
)
@settings(deadline=None)
def test_no_set_of_layers_saves_as_much_in_less_time(sizes: list[tuple[int, float]]) -> None:
    program, backward = chained(sizes)
    total = sum(keeps for keeps, _ in sizes)
    numbers = range(len(sizes))
    every = chain.from_iterable(combinations(numbers, n) for n in range(1, len(sizes) + 1))
    options = [(sum(sizes[i][0] for i in s), sum(sizes[i][1] for i in s)) for s in every]
    for plan in program.plans(backward):
        saves = sum(sizes[int(name)][0] for name in plan.modules)
        spends = sum(sizes[int(name)][1] for name in plan.modules)
        assert plan.seconds == pytest.approx(spends)
        # The search rounds savings to units of total/256. So a faster set of layers may exist that
        # saves more than the plan. The difference is less than `rounding` MiB.
        rounding = len(sizes) * -(-total // 256) + 1
        assert spends <= min(
            (seconds for size, seconds in options if size >= saves + rounding), default=spends
        )
