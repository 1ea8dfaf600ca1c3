"""Reads the card of a recording from its settings.

A recording by plimsoll has a list under "gpus" in its settings, with the "device", "name" and
"total_bytes" of each card. PyTorch's own snapshots do not name the card.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from plimsoll.base.errors import InputError
from plimsoll.engine.gpus.profiles import gpu_profile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll.engine.gpus.profiles import GpuProfile

_LONGEST_NAME = 100
_MOST_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class RecordedCard:
    """The card on which the recorded program ran.

    Attributes:
        name: The card's name.
        total_bytes: The card's memory.
        profile: plimsoll's profile of the card; None if it has none.
    """

    name: str
    total_bytes: int
    profile: GpuProfile | None

    @property
    def usable_bytes(self) -> int:
        """The most that an allocator can reserve: the card's memory minus the CUDA context.

        If the card has no profile, the size of the context is unknown and counts as 0.
        """
        context = 0 if self.profile is None else self.profile.context_bytes
        return max(self.total_bytes - context, 1)


def named_card(name: str) -> RecordedCard:
    """Returns the card that `gpu_profile` finds by this name.

    Raises:
        InputError: If no card has this name.
    """
    profile = gpu_profile(name)
    return RecordedCard(profile.name, profile.total_bytes, profile)


def card_entry(device: int, name: str, total_bytes: int) -> dict[str, Any]:
    """Makes a card's entry for the list "gpus" in a recording's settings."""
    return {"device": device, "name": name, "total_bytes": total_bytes}


def recorded_card(settings: Mapping[str, Any], device: int) -> RecordedCard | None:
    """Returns a device's card from a recording's settings; None if they have no valid entry."""
    entries = settings.get("gpus")
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, dict) or entry.get("device") != device:
            continue
        name, total_bytes = entry.get("name"), entry.get("total_bytes")
        if not isinstance(name, str) or not isinstance(total_bytes, int):
            return None
        if not 0 < total_bytes < _MOST_BYTES:
            return None
        try:
            return replace(named_card(name), total_bytes=total_bytes)
        except InputError:
            return RecordedCard(name[:_LONGEST_NAME], total_bytes, None)
    return None
