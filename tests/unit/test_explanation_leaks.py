"""Tests memory that grows from step to step, and memory that only seems to."""

from __future__ import annotations

import itertools
import math
import statistics
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.recordings.analysis.leaks import (
    LEAST_STEPS,
    find_leaks,
    growing_stacks,
    mann_kendall,
    theil_sen,
)
from plimsoll.recordings.analysis.steps import Steps
from tests.unit.test_analysis_steps import Program

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll.recordings.analysis.leaks import Leak

SERIES = st.lists(st.integers(0, 50), min_size=3, max_size=30)


def leaks_of(step: Callable[[Program, int], None], count: int = 40) -> list[Leak]:
    """Returns the leaks of a program of marked steps; blocks are grouped by their stacks."""
    program = Program()
    boundaries = [0]
    for number in range(count):
        step(program, number)
        boundaries.append(len(program.events))
    found = program.lifetimes()
    names = [f"line {number}" for number in range(10)]
    steps = Steps(np.array(boundaries), "marks", 1.0)
    return find_leaks(found, steps, found.stack.astype(np.int64), names)


def healthy(program: Program) -> None:
    for stack in (1, 2):
        blocks = [program.malloc(1000 * stack, stack) for _ in range(20)]
        for block in blocks:
            program.free(block)


@given(SERIES)
def test_the_slope_is_the_median_of_all_slopes(series: list[int]) -> None:
    time = np.arange(len(series)) * 3
    slopes = [(series[j] - series[i]) / (3 * (j - i))
              for i, j in itertools.combinations(range(len(series)), 2)]  # fmt: skip
    assert theil_sen(time, np.array(series)) == pytest.approx(statistics.median(slopes))


@given(SERIES)
def test_the_confidence_is_mann_and_kendalls(series: list[int]) -> None:
    score = sum((b > a) - (b < a) for a, b in itertools.combinations(series, 2))
    count = len(series)
    variance = count * (count - 1) * (2 * count + 5)
    variance -= sum(n * (n - 1) * (2 * n + 5) for n in map(series.count, set(series)))
    expected = 0.0
    if score > 0:
        normal = statistics.NormalDist()
        expected = normal.cdf((score - 1) / math.sqrt(variance / 18))
    assert mann_kendall(np.array(series)) == pytest.approx(expected)


def test_one_block_kept_each_step_is_found_with_its_slope() -> None:
    def step(program: Program, _: int) -> None:
        healthy(program)
        program.malloc(4096, 7)

    (leak,) = leaks_of(step)
    assert leak.what == "line 7"
    assert leak.slope_bytes == 4096
    assert leak.confidence > 0.999
    assert leak.blocks * 4096 == leak.grown_bytes


def test_a_leak_in_every_third_step_is_found() -> None:
    def step(program: Program, number: int) -> None:
        healthy(program)
        if number % 3 == 0:
            program.malloc(3000, 7)

    (leak,) = leaks_of(step)
    assert leak.slope_bytes == pytest.approx(1000, rel=0.05)


def test_leaks_are_ranked_by_their_slopes() -> None:
    def step(program: Program, _: int) -> None:
        program.malloc(100, 7)
        program.malloc(900, 8)

    assert [leak.what for leak in leaks_of(step)] == ["line 8", "line 7"]


def test_growth_that_ends_is_warming_up() -> None:
    def step(program: Program, number: int) -> None:
        healthy(program)
        if number < 15:
            program.malloc(4096, 7)

    assert leaks_of(step) == []


def test_what_is_given_back_now_and_then_is_no_leak() -> None:
    cache: list[int] = []

    def step(program: Program, number: int) -> None:
        cache.append(program.malloc(4096, 7))
        if number % 16 == 15:
            while cache:
                program.free(cache.pop())

    assert leaks_of(step) == []


def test_what_every_step_replaces_is_no_leak() -> None:
    held: list[int] = []

    def step(program: Program, _: int) -> None:
        if held:
            program.free(held.pop())
        held.append(program.malloc(4096, 7))

    assert leaks_of(step) == []


def test_too_few_steps_tell_nothing() -> None:
    def step(program: Program, _: int) -> None:
        program.malloc(4096, 7)

    assert leaks_of(step, LEAST_STEPS - 1) == []
    assert len(leaks_of(step, LEAST_STEPS)) == 1


def test_a_jump_of_another_stack_at_the_same_line_is_no_growth() -> None:
    program, boundaries = Program(), [0]
    for number in range(40):
        program.malloc(100, 7)
        if number == 25:
            program.malloc(4_000_000, 8)
        boundaries.append(len(program.events))
    blocks, steps = program.lifetimes(), Steps(np.array(boundaries), "marks", 1.0)
    (leak,) = find_leaks(blocks, steps, np.zeros(len(blocks), dtype=np.int64), ["model.py:20"])
    assert leak.slope_bytes == 100
    assert leak.grown_bytes == 100 * leak.blocks
    assert growing_stacks(blocks, steps).tolist() == [7]


def test_no_blocks_have_no_growing_stacks() -> None:
    program, boundaries = Program(), [0]
    for _ in range(40):
        program.malloc(100, 7)
        boundaries.append(len(program.events))
    steps = Steps(np.array(boundaries), "marks", 1.0)
    none = np.zeros(0, dtype=np.int64)
    assert growing_stacks(program.lifetimes()[none], steps).tolist() == []


def test_a_jump_of_the_same_stack_is_no_growth_either() -> None:
    def step(program: Program, number: int) -> None:
        program.malloc(4_000_000 if number == 25 else 100, 7)

    (leak,) = leaks_of(step)
    assert leak.slope_bytes == 100
    assert leak.grown_bytes < 40 * 100


def test_blocks_that_replace_those_of_another_stack_are_no_growth() -> None:
    program, boundaries, old = Program(), [0], []
    old += [program.malloc(100, 8) for _ in range(40)]
    for _ in range(40):
        program.free(old.pop())
        program.malloc(100, 7)
        boundaries.append(len(program.events))
    blocks, steps = program.lifetimes(), Steps(np.array(boundaries), "marks", 1.0)
    assert not find_leaks(blocks, steps, np.zeros(len(blocks), dtype=np.int64), ["queue.py:3"])
