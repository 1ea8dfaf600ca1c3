"""Which saved storages are on the card, which are away, and how many bytes that is.

The books hold weak references, for a storage lives as long as autograd has it. One may die in any
thread at any time; it is taken out of the books when `remove_dead` is called.
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
    """The books of one device; each of the first four is by serial.

    Attributes:
        here: On the card; never left since they were saved.
        returned: On the card again.
        held: On the card, and held by the program as well.
        away: In host memory alone.
        bytes_here: On the card, in all.
        count: Of the storages that have not died.
        dead: Those that have died and are still in the books: serial, bytes on the card, buffer.
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
        """The storage on the card that begins at an address."""
        reference = self._by_address.get(address)
        return None if reference is None else reference()

    def add(self, saved: SavedStorage) -> None:
        """A storage was saved."""
        reference = weakref.ref(saved)
        self.here[saved.serial] = reference
        self._by_address[saved.storage.data_ptr()] = reference
        self.bytes_here += saved.size
        self.count += 1

    def release(self, saved: SavedStorage) -> None:
        """Free a storage's memory on the card; it stays in the book that it is in."""
        self._by_address.pop(saved.storage.data_ptr(), None)
        saved.release()
        self.bytes_here -= saved.size

    def discard(self, saved: SavedStorage) -> None:
        """Free a storage that has no copy, for good."""
        self.release(saved)
        for where in (self.here, self.returned, self.held):
            where.pop(saved.serial, None)

    def bring_back(self, saved: SavedStorage) -> None:
        """Start a storage's copy to the card.

        Raises:
            torch.OutOfMemoryError: If the card has no room for it; nothing has changed then.
        """
        saved.copy_back()
        self.bytes_here += saved.size
        reference = self.away.pop(saved.serial)
        self.returned[saved.serial] = reference
        self._by_address[saved.storage.data_ptr()] = reference

    def reclaim_held(self) -> None:
        """The backward pass begins: count those that the program held as here again."""
        self.here = dict(sorted((self.here | self.held).items()))
        self.held = {}

    def remove_dead(self) -> tuple[int, PinnedBuffer | None]:
        """Take the first of the dead out of the books: its serial, and its buffer, if any."""
        serial, size, buffer = self.dead.popleft()
        self.count -= 1
        self.bytes_here -= size
        for where in (self.here, self.returned, self.held, self.away):
            where.pop(serial, None)
        return serial, buffer

    def forget_addresses(self) -> None:
        """Forget where the dead were. Looks at all addresses, so it is for once a step."""
        self._by_address = {
            address: reference
            for address, reference in self._by_address.items()
            if reference() is not None
        }


def living(where: References, key: int) -> SavedStorage | None:
    """The storage of a key, if it is there and has not died."""
    reference = where.get(key)
    return None if reference is None else reference()
