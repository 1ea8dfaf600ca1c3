"""Tests the memory that a script needs if it does not fit, against runs on cards of that size."""

from __future__ import annotations

import pytest

from plimsoll.base.units import GRANULE, MiB
from plimsoll.prediction.predict import predict
from tests.simulated import PROGRAMS

pytest.importorskip("torch")

SCRIPT = PROGRAMS / "causes" / "varied_sizes.py"
_CARD = "RTX 4090"
_MEMORY = 690 * MiB  # 5 % more than what is live at the peak


def test_a_need_is_that_of_the_smallest_card_and_an_allocator_that_helps_does_fit() -> None:
    found = predict(SCRIPT, ["fault"], gpu=_CARD, dedicated=_MEMORY)
    own = found.needs[0]
    assert found.fits is False
    assert found.headroom_bytes == found.total_bytes - own.card_bytes < 0
    assert own.card_bytes < found.device_used_bytes
    enough = own.card_bytes - found.context_bytes
    for memory, fits in ((enough, True), (enough - 2 * GRANULE, False)):
        again = predict(SCRIPT, ["fault"], gpu=_CARD, dedicated=memory, measure_need=False)
        assert again.fits is fits

    (helping,) = [need for need in found.needs if need.fits]
    assert found.causes[0].name == "fragments"
    assert helping.way in found.causes[0].change
    assert helping.allocator == "elastic"
    under = predict(
        SCRIPT, ["fault"], gpu=_CARD, dedicated=_MEMORY, allocator="elastic", measure_need=False
    )
    assert under.fits
    assert under.device_used_bytes == pytest.approx(helping.card_bytes, rel=0.01)
