"""Tests memory outside PyTorch: which process has it, and when it is the cause of a full card."""

from dataclasses import replace

from plimsoll.base.units import GiB, MiB
from plimsoll.recordings.causes.cause import Cause
from plimsoll.recordings.causes.outside_pytorch import (
    CardParts,
    outside_pytorch,
    own_bytes,
    with_outside,
)

CARD = CardParts(total_bytes=80 * GiB, pytorch_bytes=50 * GiB, context_bytes=500 * MiB)


def test_the_largest_holder_says_what_helps() -> None:
    found = outside_pytorch(replace(CARD, nccl_bytes=GiB, others_bytes=40 * GiB))
    assert found is not None
    assert found.bytes == 41 * GiB
    assert "1.00 GiB by NCCL and 40.00 GiB by other programs" in found.sentence
    assert "nvidia-smi" in found.change
    of_job = outside_pytorch(replace(CARD, processes_bytes=40 * GiB, others_bytes=GiB))
    assert of_job is not None
    assert of_job.change == "give each process that uses a GPU a card of its own"


def test_a_context_alone_is_no_cause() -> None:
    assert outside_pytorch(CARD) is None
    assert outside_pytorch(replace(CARD, nccl_bytes=GiB)) is None


def test_what_no_card_of_this_size_holds_is_not_for_others() -> None:
    assert outside_pytorch(replace(CARD, pytorch_bytes=80 * GiB, others_bytes=8 * GiB)) is None


def test_pytorchs_error_says_what_the_process_has() -> None:
    text = (
        "8.50 GiB is free. Including non-PyTorch memory, this process has 6.25 GiB memory in use."
    )
    assert own_bytes(text) == round(6.255 * GiB)  # the largest size that is printed as "6.25"
    assert own_bytes("CUDA out of memory") is None


def test_growth_comes_first_and_ranks_on_one_card_are_enough() -> None:
    grows = Cause("kept_over_passes", "", "", GiB, growth_bytes=MiB)
    holds = Cause("logits", "", "", GiB)
    over_full = replace(CARD, others_bytes=40 * GiB)
    names = [each.name for each in with_outside([grows, holds], over_full)]
    assert names == ["kept_over_passes", "outside_pytorch", "logits"]
    ranks = Cause("ranks_on_one_card", "", "", GiB)
    assert with_outside([ranks], over_full) == [ranks]
