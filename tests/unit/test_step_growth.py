"""Tests finding how much a program's memory grows in each step, and when it stops growing."""

from __future__ import annotations

import pytest

from plimsoll.prediction.step_growth import STEPS, growth_bytes, steady_from


@pytest.mark.parametrize(
    ("grown", "growth"),
    [
        ([4] * STEPS, 4),
        ([100, 0, *[4] * STEPS], 4),  # only the last STEPS steps count
        ([4, 4, 4, 4, 8, 8, 8, 8], 4),
        ([4] * (STEPS - 1), None),
        ([*[4] * STEPS, 0], None),
        ([4, 4, 4, 4, 4, 4, 4, 9], None),  # uneven growth, as if sequence lengths vary
        ([], None),
    ],
)
def test_the_last_steps_all_have_to_grow_evenly(grown: list[int], growth: int | None) -> None:
    peaks = [1000]
    for more in grown:
        peaks.append(peaks[-1] + more)
    assert growth_bytes(peaks) == growth


MIB = 1 << 20


@pytest.mark.parametrize(
    ("peaks", "step"),
    [
        ([5, 8, 8], 2),
        ([8, 8], 1),
        ([9, 8, 8, 8], 2),
        ([5, 8, 8, 8, 3], 2),  # the last batch is short
        ([5, 8, 8, 3, 8, 8, 3], 2),  # a short batch ends each epoch
        ([5, 8, 5, 8, 5, 8, 5], 2),  # two optimizers in turn
        ([4, 2, 8, 4, 2, 8], 3),  # three optimizers in turn
        ([8, 7.9999, 8.0001, 7.9998], 1),  # equal but for rounding
        ([5, 8], 0),  # too few steps
        ([5, 8, 3], 0),
        ([5, 8, 3, 9], None),
        ([3, 7, 5, 2, 6, 4], None),  # sequence lengths vary, so peaks never repeat
        ([1, 2, 3, 4, 5, 6, 6], None),
        ([5] * 12 + [7] + [8] * 8 + [3], 14),  # a second model, larger than the first
        ([5] * 12 + [7] + [8] * 7 + [3], None),
    ],
)
def test_steps_are_steady_once_they_take_the_most_again_and_again(
    peaks: list[float], step: int | None
) -> None:
    assert steady_from([int(peak * MIB) for peak in peaks]) == step


def test_steps_that_grow_a_little_each_time_are_not_steady() -> None:
    assert steady_from([MIB + 64 * step for step in range(20)]) is None
    assert steady_from([MIB + 64 * (step % 3) for step in range(20)]) == 1
