"""Moves saved storages off the card and back, as the plan and the budget require.

A *saved storage* is the storage of a tensor that autograd has saved for the backward pass. The plan
predicts, from earlier steps, when each storage is used. The first storage to leave is the one that
the backward pass will use last. Storages that the backward pass will use soon return early, as far
as there is room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from plimsoll.offloading.program_memory import ProgramMemory, allocated_bytes
from plimsoll.offloading.residency import References, Residency, living

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from plimsoll.offloading.plan import Plan
    from plimsoll.offloading.saved_storage import SavedStorage


class Pager:
    """Moves the saved storages of one device.

    Args:
        plan: The plan of this step, with the budget.
        residency: The location of each storage.
        memory: Measures the program's own memory, which excludes saved storages. The pager sets
            `memory.has_changed` after it has moved a storage.

    Attributes:
        first: The serial number of this step's first storage, which the plan counts as 0.
    """

    def __init__(self, plan: Plan, residency: Residency, memory: ProgramMemory) -> None:
        self.first = 0
        self._plan = plan
        self._residency = residency
        self._memory = memory
        # The position in the plan's events at which `prefetch` continues. The coming events before
        # this position use only storages that are on the card.
        self._ahead = 0

    def begin(self, first: int) -> None:
        """Begins a step whose first storage has the serial number `first`."""
        self.first = first
        self._ahead = 0

    def make_room(self, size: int, spare: int = -1) -> None:
        """Moves storages out until `size` more bytes fit the budget.

        The first storage to leave is the one that the backward pass will use last.

        Args:
            size: The bytes to make room for.
            spare: The serial number of a storage that must stay; -1 for none.
        """
        residency = self._residency
        limit = self._plan.limit - size
        expected, ahead = self._plan.expected(), self._plan.expected_of_forward()
        if expected is None or ahead is None:
            self._evict(residency.held, 0, spare)
            self._evict(residency.here, 0, spare)
            self._evict(residency.returned, 0, spare, but_arriving=True)
            return
        if residency.bytes_here > limit - ahead:
            for where in (residency.here, residency.returned, residency.held):
                self._evict(where, max(limit - ahead, 0), spare)
        if residency.bytes_here > limit - expected and residency.held:
            torch.clear_autocast_cache()  # drops casts of weights, which autocast can make again
            self._memory.has_changed = True
            self._evict(residency.held, max(limit - expected, 0), spare)

    def bring_back(self, saved: SavedStorage) -> None:
        """Brings a storage back to the card; if room is lacking, first moves other storages out."""
        self.make_room(saved.size)
        try:
            self._fetch(saved)
        except torch.OutOfMemoryError:
            residency = self._residency
            for where in (residency.here, residency.returned, residency.held):
                self._evict(where, 0, saved.serial)
            self._fetch(saved)

    def discard(self, saved: SavedStorage) -> None:
        """Frees a storage, because backward needs only the shape of the saved tensor.

        Does nothing if other saved tensors share the storage, or if a later backward pass through
        the same graph may need the values.
        """
        keeps = torch._C._autograd._get_current_graph_task_keep_graph()
        if saved.views > 1 or keeps or saved.storage is None:
            return
        self._residency.discard(saved)
        self._memory.has_changed = True
        saved.is_discarded = True
        self._plan.discard(saved.serial - self.first)

    def prefetch(self, used: SavedStorage) -> None:
        """Brings back the storages that are used after `used`, until one finds no room."""
        residency = self._residency
        for position, saved in self._next_away(used):
            expected = self._plan.expected(position)
            # without a plan, assume that the backward pass allocates `saved.size` more bytes
            if expected is None:
                allocated = allocated_bytes(self._memory.device).now
                expected = allocated - residency.bytes_here + saved.size
            if residency.bytes_here + saved.size + expected > self._plan.limit:
                return
            try:
                self._fetch(saved)
            except torch.OutOfMemoryError:  # enough memory is free, but not in one piece
                self._plan.keep_away(saved.size)
                return

    def _next_away(self, used: SavedStorage) -> Iterator[tuple[int, SavedStorage]]:
        away = self._residency.away
        if not self._plan.is_known:
            before = max((serial for serial in away if serial < used.serial), default=-1)
            if (saved := living(away, before)) is not None:
                yield self._plan.position, saved
        for position, index in self._plan.coming(self._ahead):
            self._ahead = position
            if (saved := living(away, self.first + index)) is not None:
                yield position, saved

    def _fetch(self, saved: SavedStorage) -> None:
        self._residency.bring_back(saved)
        self._memory.has_changed = True

    def _evict(
        self, where: References, most: int, spare: int, *, but_arriving: bool = False
    ) -> None:
        residency = self._residency
        serials: Iterable[int] = list(where)
        if where is residency.returned:
            serials = reversed(list(where))
        for serial in serials:
            if residency.bytes_here <= most:
                return
            saved = where[serial]()
            if saved is None or serial == spare or (but_arriving and saved.arrived is not None):
                continue
            if saved.is_held_elsewhere():
                residency.held[serial] = where.pop(serial)
                continue
            if saved.copied is None:
                saved.copy_out()
            residency.release(saved)
            self._memory.has_changed = True
            residency.away[serial] = where.pop(serial)
            self._ahead = 0
