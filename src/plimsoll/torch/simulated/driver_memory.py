"""Memory of a card that a program takes of the driver itself, outside PyTorch's allocator."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import count
from typing import TYPE_CHECKING

from plimsoll import _core
from plimsoll.base.errors import OutOfMemoryError

if TYPE_CHECKING:
    from plimsoll.engine.simulator.machine import SimulatedGpu

_PIECE_BYTES = 2 << 20
"""The driver takes memory of the card in such pieces."""
_FIRST_ADDRESS = 1 << 46
"""Beyond all addresses that a simulated card gives its allocator."""
_STRIDE_BYTES = 1 << 40
"""From one block to the next, which no block fills."""


class DriverMemory:
    """The blocks of a process, as `cudaMalloc` or `cuMemCreate` gave them."""

    def __init__(self, gpus: list[SimulatedGpu]) -> None:
        self._gpus = gpus
        self._addresses = count(_FIRST_ADDRESS, _STRIDE_BYTES)
        self._blocks: dict[int, tuple[int, int, int]] = {}
        self._taken: Counter[int] = Counter()
        self._most_taken: Counter[int] = Counter()

    def allocate(self, device: int, size: int) -> int:
        """Take memory, in whole pieces of 2 MiB, and return its address.

        Args:
            device: The card.
            size: How much, in bytes.

        Raises:
            torch.OutOfMemoryError: If the card has not that much.
        """
        whole = -(-size // _PIECE_BYTES) * _PIECE_BYTES
        try:
            handle = self._gpus[device].take(whole)
        except OutOfMemoryError as error:
            raise sys.modules["torch"].OutOfMemoryError(str(error)) from None
        address = next(self._addresses)
        self._blocks[address] = device, handle, whole
        self._taken[device] += whole
        self._most_taken[device] = max(self._most_taken[device], self._taken[device])
        return address

    def map_other(self) -> int:
        """Return an address for memory of another process, which takes nothing here."""
        return next(self._addresses)

    def free(self, address: int) -> None:
        """Give a block back; do nothing where none of this process's begins."""
        if address in self._blocks:
            device, handle, size = self._blocks.pop(address)
            self._gpus[device].give_back(handle)
            self._taken[device] -= size

    def most_bytes(self, device: int) -> int:
        """Return the most memory of a card that the program held at once, in bytes.

        It includes what the program took by the driver's own API: `simulated_driver`.
        """
        return self._most_taken[device] + _core.use_by_cuda(device)[1]

    def refused(self, error: BaseException) -> bool:
        """Return whether an error says that the driver's own API refused the program memory."""
        refusals = sum(_core.use_by_cuda(device)[2] for device in range(len(self._gpus)))
        return refusals > 0 and "out of memory" in str(error).lower()
