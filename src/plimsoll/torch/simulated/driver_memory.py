"""Memory that a program requests from the driver itself, outside PyTorch's allocator."""

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
"""The driver allocates a card's memory in multiples of this size."""
_FIRST_ADDRESS = 1 << 46
"""The address of the first block. A simulated card's allocator gets only lower addresses."""
_STRIDE_BYTES = 1 << 40
"""The distance in bytes from one block's address to the next block's. No block is this large."""


class DriverMemory:
    """The blocks that a process has allocated by `cudaMalloc`, `cuMemCreate` and the like."""

    def __init__(self, gpus: list[SimulatedGpu]) -> None:
        self._gpus = gpus
        self._addresses = count(_FIRST_ADDRESS, _STRIDE_BYTES)
        self._blocks: dict[int, tuple[int, int, int]] = {}
        self._taken: Counter[int] = Counter()
        self._most_taken: Counter[int] = Counter()

    def allocate(self, device: int, size: int) -> int:
        """Allocates memory of a card, rounded up to 2 MiB, and returns its address.

        Args:
            device: The card's index.
            size: The requested bytes.

        Raises:
            torch.OutOfMemoryError: If the card has too little free memory.
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
        """Returns a new address for memory that another process allocated.

        plimsoll takes no memory of the card here, because the other process has already done so.
        """
        return next(self._addresses)

    def free(self, address: int) -> None:
        """Frees the block at an address; does nothing if this process has no block there."""
        if address in self._blocks:
            device, handle, size = self._blocks.pop(address)
            self._gpus[device].give_back(handle)
            self._taken[device] -= size

    def most_bytes(self, device: int) -> int:
        """Returns the most memory of a card that the program held at once, in bytes.

        It includes memory that the program allocated by the driver API (`simulated_driver`).
        """
        return self._most_taken[device] + _core.use_by_cuda(device)[1]

    def refused(self, error: BaseException) -> bool:
        """Returns whether an error means that the driver API refused a request for memory."""
        refusals = sum(_core.use_by_cuda(device)[2] for device in range(len(self._gpus)))
        return refusals > 0 and "out of memory" in str(error).lower()
