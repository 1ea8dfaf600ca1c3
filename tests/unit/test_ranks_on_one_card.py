"""Tests the cause and the advice for ranks that use another rank's card."""

from __future__ import annotations

from plimsoll.base.units import MiB
from plimsoll.recordings.causes.ranks_on_one_card import OnOtherCard, ranks_on_one_card


def note(reserved: int = 0, *, loaded: bool = False, of_thread: bool = False) -> OnOtherCard:
    return OnOtherCard(0, reserved, 500 * MiB, None, loaded, of_thread)


def test_a_thread_needs_a_card_of_its_own_although_its_rank_has_one() -> None:
    cause = ranks_on_one_card(0, {1: note(of_thread=True)})
    assert cause.sentence == (
        "a thread of another rank uses GPU 0, rank 0's: rank 1 takes 500.00 MiB for a context there"
    )
    assert "CUDA_VISIBLE_DEVICES" in cause.change
    assert cause.patch == ""
    assert cause.bytes == 500 * MiB


def test_threads_of_several_ranks_are_named_together() -> None:
    cause = ranks_on_one_card(0, {2: note(of_thread=True), 1: note(of_thread=True)})
    assert cause.sentence == (
        "threads of other ranks use GPU 0, rank 0's: "
        "ranks 1, 2 take 500.00 MiB each for a context there"
    )


def test_what_a_thread_loads_is_advised_to_be_loaded_elsewhere() -> None:
    cause = ranks_on_one_card(0, {1: note(20 * MiB, loaded=True, of_thread=True)})
    assert cause.patch.startswith("torch.load(")


def test_a_rank_without_a_card_of_its_own_is_told_to_set_it() -> None:
    cause = ranks_on_one_card(0, {1: note(20 * MiB), 2: note(10 * MiB)})
    assert cause.sentence.endswith(
        "ranks 1, 2 take 20.00 MiB each there, and 500.00 MiB each for a context"
    )
    assert cause.patch.startswith("torch.cuda.set_device(")
