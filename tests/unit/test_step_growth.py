"""Whether a program takes more with every step."""

from __future__ import annotations

import pytest

from plimsoll.prediction.step_growth import STEPS, growth_bytes


@pytest.mark.parametrize(
    ("grown", "growth"),
    [
        ([4] * STEPS, 4),
        ([100, 0, *[4] * STEPS], 4),  # what was before does not count
        ([4, 4, 4, 4, 8, 8, 8, 8], 4),
        ([4] * (STEPS - 1), None),
        ([*[4] * STEPS, 0], None),
        ([4, 4, 4, 4, 4, 4, 4, 9], None),  # unevenly, as sequences of any length do
        ([], None),
    ],
)
def test_the_last_steps_all_have_to_grow_evenly(grown: list[int], growth: int | None) -> None:
    peaks = [1000]
    for more in grown:
        peaks.append(peaks[-1] + more)
    assert growth_bytes(peaks) == growth
