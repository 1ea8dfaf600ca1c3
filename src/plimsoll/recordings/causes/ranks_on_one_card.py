"""Recognises ranks that use another rank's card.

Such ranks load a checkpoint onto another rank's card, have no card of their own, or start a thread
that uses GPU 0. In CUDA each thread has a current device of its own, and it is GPU 0 at first.

A rank sees only its own process. So each rank notes its use of other ranks' cards, and the process
that started the ranks combines these notes into one cause.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from plimsoll.base.units import format_size
from plimsoll.recordings.causes.cause import Cause
from plimsoll.recordings.causes.loaded_checkpoint import loads
from plimsoll.recordings.causes.wording import subject

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll.recordings.causes.cause import Facts


@dataclass(frozen=True)
class OnOtherCard:
    """The memory of one rank on another rank's card.

    Attributes:
        device: The card.
        reserved_bytes: The most bytes that PyTorch reserved there.
        context_bytes: The size of the CUDA context that the rank's process has there.
        line: The user's line that requested the most of this memory; None if unknown.
        is_loaded: Whether most of this memory was read from a checkpoint.
        is_of_thread: Whether a thread other than the main one made the context, when the rank
            already had one on another card.
    """

    device: int
    reserved_bytes: int
    context_bytes: int
    line: str | None
    is_loaded: bool
    is_of_thread: bool = False


def on_other_card(facts: Facts, context_bytes: int, *, of_thread: bool = False) -> OnOtherCard:
    """Makes this rank's note about the card that the facts describe."""
    loaded = facts.live[facts.is_live_under(loads)] if len(facts.live) else facts.live
    is_loaded = 2 * facts.bytes_of(loaded) > facts.allocated_bytes
    return OnOtherCard(
        device=facts.device,
        reserved_bytes=facts.reserved.bytes,
        context_bytes=context_bytes,
        line=facts.line_of_most(loaded if is_loaded else facts.live),
        is_loaded=is_loaded,
        is_of_thread=of_thread,
    )


def ranks_on_one_card(owner: int, guests: Mapping[int, OnOtherCard]) -> Cause:
    """Makes the cause for the ranks that use another rank's card.

    Args:
        owner: The rank that owns the card.
        guests: The note of each rank that uses this card without owning it, by the rank's number.
    """
    most = max(guests.values(), key=lambda each: (each.reserved_bytes, each.context_bytes))
    named = ", ".join(map(str, sorted(guests)))
    ranks = f"rank {named} takes" if len(guests) == 1 else f"ranks {named} take"
    each = "" if len(guests) == 1 else " each"
    context = f"{format_size(most.context_bytes)}{each} for a context"
    takes = f"{ranks} {context} there"
    if most.reserved_bytes:
        takes = f"{ranks} {format_size(most.reserved_bytes)}{each} there, and {context}"
    if most.is_loaded:
        sentence = f"{subject(most.line)} loads onto GPU {most.device} in every rank: {takes}"
        change = 'load it with map_location="cpu", or with the rank\'s own card'
        patch = 'torch.load(path, map_location="cpu")'
    elif most.is_of_thread:
        using = "a thread of another rank uses"
        if len(guests) > 1:
            using = "threads of other ranks use"
        sentence = f"{using} GPU {most.device}, rank {owner}'s: {takes}"
        change = (
            "set the rank's own card in that thread too, as a new thread's is GPU 0. If a library "
            "starts the thread, show each rank only its own card: set CUDA_VISIBLE_DEVICES"
        )
        patch = ""
    else:
        where = "" if most.line is None else f" at {subject(most.line)}"
        sentence = f"GPU {most.device} is rank {owner}'s, and others use it too{where}: {takes}"
        change = "set the rank's own card before its process uses a GPU"
        patch = 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))'
    return Cause(
        name="ranks_on_one_card",
        sentence=sentence,
        change=change,
        bytes=sum(one.reserved_bytes + one.context_bytes for one in guests.values()),
        line=most.line,
        patch=patch,
    )
