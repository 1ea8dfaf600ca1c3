"""Tracks which saved storages are on the card and which in host memory, and their sizes.

The tables hold weak references, because a storage lives as long as autograd holds it. A storage may
be deleted in any thread at any time; `remove_dead` later removes it from the tables.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plimsoll.offloading.pinned import PinnedBuffer
    from plimsoll.offloading.saved_storage import SavedStorage

References = dict[int, "weakref.ref[SavedStorage]"]


class Residency:
    """The saved storages of one device.

    `here`, `returned`, `held` and `away` are tables by serial number.

    Attributes:
        here: Storages on the card that have never left since they were saved.
        returned: Storages on the card that have returned.
        held: Storages on the card to which the program itself holds references, besides autograd.
            Moving them to host memory would free nothing on the card.
        away: Storages in host memory only.
        bytes_here: The bytes of all storages on the card.
        count: The number of storages that `remove_dead` has not removed.
        dead: For each deleted storage that `remove_dead` has not removed, its serial number, its
            bytes on the card and its buffer.
    """

    def __init__(self) -> None:
        self.here: References = {}
        self.returned: References = {}
        self.held: References = {}
        self.away: References = {}
        self.bytes_here = 0
        self.count = 0
        self.dead: deque[tuple[int, int, PinnedBuffer | None]] = deque()
        self._by_address: References = {}

    def at(self, address: int) -> SavedStorage | None:
        """Returns the storage on the card that begins at an address."""
        reference = self._by_address.get(address)
        return None if reference is None else reference()

    def add(self, saved: SavedStorage) -> None:
        """Adds a saved storage."""
        reference = weakref.ref(saved)
        self.here[saved.serial] = reference
        self._by_address[saved.storage.data_ptr()] = reference
        self.bytes_here += saved.size
        self.count += 1

    def release(self, saved: SavedStorage) -> None:
        """Frees a storage's memory on the card. The caller removes the storage from its table."""
        self._by_address.pop(saved.storage.data_ptr(), None)
        saved.release()
        self.bytes_here -= saved.size

    def discard(self, saved: SavedStorage) -> None:
        """Frees a storage's memory on the card. The storage will not be brought back."""
        self.release(saved)
        for where in (self.here, self.returned, self.held):
            where.pop(saved.serial, None)

    def bring_back(self, saved: SavedStorage) -> None:
        """Starts a storage's copy to the card.

        Raises:
            torch.OutOfMemoryError: If the card has no room for it; the state is unchanged then.
        """
        saved.copy_back()
        self.bytes_here += saved.size
        reference = self.away.pop(saved.serial)
        self.returned[saved.serial] = reference
        self._by_address[saved.storage.data_ptr()] = reference

    def reclaim_held(self) -> None:
        """Moves the storages of `held` back to `here`; called when the backward pass begins."""
        self.here = dict(sorted((self.here | self.held).items()))
        self.held = {}

    def remove_dead(self) -> tuple[int, PinnedBuffer | None]:
        """Removes the oldest of `dead` from all tables. Returns its serial number and buffer."""
        serial, size, buffer = self.dead.popleft()
        self.count -= 1
        self.bytes_here -= size
        for where in (self.here, self.returned, self.held, self.away):
            where.pop(serial, None)
        return serial, buffer

    def forget_addresses(self) -> None:
        """Forgets the addresses of dead storages. Scans all addresses, so call it once a step."""
        self._by_address = {
            address: reference
            for address, reference in self._by_address.items()
            if reference() is not None
        }


def living(where: References, key: int) -> SavedStorage | None:
    """Returns the storage that a table has under a key; None if there is none or it was deleted."""
    reference = where.get(key)
    return None if reference is None else reference()
