"""Tests finding the card that a recording names."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll import Allocator, SimulatedGpu, replay
from plimsoll.base.units import GiB, MiB, format_size
from plimsoll.engine.gpus.profiles import gpu_profile
from plimsoll.engine.gpus.recorded_card import card_entry, recorded_card
from plimsoll.explanation.explain import explain
from plimsoll.recordings.reading import read_recording
from plimsoll.recordings.recording import Recording
from plimsoll.torch.session.record import record


def settings_of(*entries: object) -> dict[str, Any]:
    return {"gpus": list(entries)}


def test_the_card_of_a_device_is_found_with_its_profile() -> None:
    settings = settings_of(
        card_entry(0, "NVIDIA H100 80GB HBM3", 80 * GiB), card_entry(2, "RTX 4090:20GiB", 20 * GiB)
    )
    first, third = recorded_card(settings, 0), recorded_card(settings, 2)
    assert first is not None
    assert (first.name, first.total_bytes) == ("H100", 80 * GiB)
    assert first.usable_bytes == 80 * GiB - gpu_profile("H100").context_bytes
    assert third is not None
    assert third.name == "RTX 4090:20GiB"
    assert recorded_card(settings, 1) is None
    assert recorded_card({}, 0) is None


def test_an_unknown_card_keeps_its_name_but_for_its_length() -> None:
    card = recorded_card(settings_of(card_entry(0, "Card\x1b[31m\u202e X" + "!" * 999, GiB)), 0)
    assert card is not None
    assert card.name == ("Card\x1b[31m\u202e X" + "!" * 999)[:100]
    assert (card.profile, card.usable_bytes) == (None, GiB)


@pytest.mark.parametrize(
    "gpus",
    [
        None, 7, "H100", {"device": 0}, [None], [[]], [{}], [{"device": 0}],
        [{"device": 0, "name": "H100"}], [{"device": 0, "name": 7, "total_bytes": 1}],
        [{"device": 0, "name": "H100", "total_bytes": "80GiB"}],
        [{"device": 0, "name": "H100", "total_bytes": -1}],
        [{"device": 0, "name": "H100", "total_bytes": 1 << 70}],
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_no_card(gpus: object) -> None:
    assert recorded_card({"gpus": gpus}, 0) is None


def of_a_small_card(tmp_path: Any) -> Recording:
    """Returns a recording that reserves 800 MiB of a 1 GiB card; no room is left to cache more."""
    allocator = Allocator(SimulatedGpu("1GiB"))
    with record(tmp_path / "run.plim", allocator=allocator):
        allocator.free(allocator.malloc("400MiB"))
        allocator.malloc("800MiB")
    recording = read_recording(tmp_path / "run.plim")
    recording.settings["gpus"] = [card_entry(0, "a card", GiB)]
    return recording


def test_another_setting_has_no_more_memory_than_the_card(tmp_path: Any) -> None:
    recording = of_a_small_card(tmp_path)
    conf = "roundup_power2_divisions:2"
    (result,) = replay(recording, conf=conf)
    assert (result.gpu, result.limit_bytes, result.limit_source) == ("a card", GiB, "card")
    assert result.peak_reserved_bytes <= GiB
    (given,) = replay(recording, conf=conf, limit="8GiB")
    assert (given.limit_bytes, given.limit_source) == (8 * GiB, "given")
    assert given.peak_reserved_bytes > GiB
    (own,) = replay(recording)
    assert own.matches_recording is True


def test_a_card_without_a_profile_is_shown_with_its_memory(tmp_path: Any) -> None:
    found = explain(of_a_small_card(tmp_path), advice=False)
    assert (found.card.gpu, found.card.total_bytes) == ("a card", GiB)
    assert found.card.context_bytes is None
    assert found.reserved.reserved_bytes == 800 * MiB
    assert "CUDA context: unknown of a card" in str(found)
    assert f"in all, of {format_size(GiB)} (a card)" in str(found)
