"""Memory of a card that a program takes of the driver itself, outside PyTorch's allocator."""

from __future__ import annotations

import sys
from itertools import count
from typing import TYPE_CHECKING

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
        self._blocks: dict[int, tuple[int, int]] = {}

    def allocate(self, device: int, size: int) -> int:
        """Take memory, in whole pieces of 2 MiB, and return its address.

        Args:
            device: The card.
            size: How much, in bytes.

        Raises:
            torch.OutOfMemoryError: If the card has not that much.
        """
        try:
            handle = self._gpus[device].take(-(-size // _PIECE_BYTES) * _PIECE_BYTES)
        except OutOfMemoryError as error:
            raise sys.modules["torch"].OutOfMemoryError(str(error)) from None
        address = next(self._addresses)
        self._blocks[address] = device, handle
        return address

    def map_other(self) -> int:
        """Return an address for memory of another process, which takes nothing here."""
        return next(self._addresses)

    def free(self, address: int) -> None:
        """Give a block back; do nothing where none of this process's begins."""
        device, handle = self._blocks.pop(address, (0, None))
        if handle is not None:
            self._gpus[device].give_back(handle)
