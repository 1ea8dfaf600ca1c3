"""Finds how much memory of the card a run needs, with its own and with other allocators.

The run itself had a card with unlimited memory. Its reserved memory is no measure of the need:
on a card of limited size, PyTorch releases cached memory before a request fails. So plimsoll
replays the run's requests with limited memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from plimsoll.base.errors import InputError
from plimsoll.engine.replays.replay import replay
from plimsoll.prediction.allocator_need import AllocatorNeed
from plimsoll.prediction.child.recorded_run import (
    MOST_EVENTS,
    least_memory,
    other_settings,
    own_conf,
    recorded_run,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plimsoll.engine.replays.parts import ReplayResult
    from plimsoll.engine.simulator.allocator import Allocator
    from plimsoll.recordings.recording import Recording
    from plimsoll.torch.simulated.simulation import Simulation


def allocator_needs(
    simulation: Simulation, device: int, room: int, outside: int
) -> list[AllocatorNeed]:
    """Returns what a run needs of a card, with its own allocator first.

    If the live blocks alone fit the card and the run does not, the other settings of PyTorch and
    plimsoll's allocator follow. Returns nothing if replays cannot show the need.

    Args:
        simulation: The GPUs of the run.
        device: The card.
        room: The most that the allocator can reserve on the card.
        outside: The memory of the card outside the allocator.
    """
    setup, allocator = simulation.setup, simulation.allocators[device]
    can_spill = setup.policy == "spill" or setup.driver == "wddm"
    if can_spill or setup.plan is not None or allocator.engine.history_size > MOST_EVENTS:
        return []
    run = _Run(recorded_run(simulation, device), allocator, room)
    try:
        own = run.need(allocator.name, own_conf(allocator))
        needs = [own]
        if not own.fits and run.allocated_bytes <= room:
            needs += [run.need(name, conf) for name, conf in other_settings(allocator)]
    except InputError:
        return []
    return [replace(need, card_bytes=need.card_bytes + outside) for need in needs]


@dataclass
class _Run:
    """The requests of a run, and the memory in which replays serve them."""

    recording: Recording
    own: Allocator
    room: int
    allocated_bytes: int = 0

    def need(self, name: str, conf: str) -> AllocatorNeed:
        """Returns the need for the allocator alone, without memory outside it."""
        free = self._replayed(name, conf, None)
        self.allocated_bytes = allocated = free.peak_allocated_bytes
        if free.peak_reserved_bytes <= self.room:
            return AllocatorNeed(name, conf, fits=True, card_bytes=free.peak_reserved_bytes)
        if allocated <= self.room:
            limited = self._replayed(name, conf, self.room)
            if limited.fits_at_any_pace:
                return AllocatorNeed(name, conf, fits=True, card_bytes=limited.peak_reserved_bytes)
        least = least_memory(
            (max(allocated, self.room), free.peak_reserved_bytes),
            lambda memory: self._replayed(name, conf, memory).fits_at_any_pace is True,
        )
        return AllocatorNeed(name, conf, fits=False, card_bytes=least)

    def _replayed(self, name: str, conf: str, memory: int | None) -> ReplayResult:
        (result,) = replay(
            self.recording,
            allocator=name,  # type: ignore[arg-type]
            conf=conf if name == "native" else None,
            gpu_memory=memory,
            version=self.own.version,
        )
        return result


def of_all(needs: Sequence[list[AllocatorNeed]]) -> list[AllocatorNeed]:
    """Returns the needs of several cards together: the largest with each allocator.

    An allocator that was not tried for a card, because the run fits that card, counts there with
    the run's own. Returns nothing if the needs of some card are not known.
    """
    if not needs or not all(needs):
        return []
    keys = [(need.allocator, need.conf) for need in max(needs, key=len)]
    if any((of_card[0].allocator, of_card[0].conf) != keys[0] for of_card in needs):
        return []
    if any(not of_card[0].fits and len(of_card) < len(keys) for of_card in needs):
        keys = keys[:1]  # the live blocks of a card are too much for any allocator
    found = []
    for key in keys:
        same = [_with(of_card, key) for of_card in needs]
        most = max(need.card_bytes for need in same)
        found.append(AllocatorNeed(*key, all(need.fits for need in same), most))
    return found


def _with(of_card: list[AllocatorNeed], key: tuple[str, str]) -> AllocatorNeed:
    """Returns a card's need with an allocator, or that with the run's own allocator."""
    return next((need for need in of_card if (need.allocator, need.conf) == key), of_card[0])
