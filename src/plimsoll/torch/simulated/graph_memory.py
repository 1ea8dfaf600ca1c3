"""The memory that the driver allocates for CUDA graphs, outside PyTorch's allocator.

The driver allocates a fixed amount for each instantiated graph, and a smaller fixed amount for each
kernel and copy in the graph. Both amounts were measured on an H100 with driver 580
(benchmarks/results/serving.jsonl). For models of dense layers they are right to 5 %. Models with
quantized weights or experts, whose kernels are larger, took up to 39 % more. The driver keeps the
memory of a destroyed graph for the next graph, until the process ends.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll.engine.simulator.machine import SimulatedGpu

_GRAPH_BYTES = 119_000
_NODE_BYTES = 3_230
_LEAST, _MOST = 0.95, 1.4
"""The least and the most memory that graphs may need on a GPU, relative to the simulated memory."""
_PIECE_BYTES = 2 << 20
"""The driver allocates a card's memory in multiples of this size."""


class GraphMemory:
    """Accounts for the driver's memory of all CUDA graphs in a process.

    Attributes:
        taken: The bytes that the driver has allocated for graphs, by device.
    """

    def __init__(self, gpus: list[SimulatedGpu], nodes_of: Callable[[int], int]) -> None:
        """Begins without graphs.

        Args:
            gpus: The devices.
            nodes_of: Returns how many kernels and copies a capture has. Called with the capture's
                number.
        """
        self.taken: Counter[int] = Counter()
        self._gpus = gpus
        self._nodes_of = nodes_of
        self._live: Counter[int] = Counter()
        self._graphs: dict[int, tuple[int, int]] = {}

    def add(self, graph: int, device: int, capture: int) -> None:
        """Allocates the driver's memory for a captured graph.

        Args:
            graph: The graph's identity.
            device: The graph's device.
            capture: The number of the graph's capture.

        Raises:
            OutOfMemoryError: If the card has too little free memory; nothing is allocated then.
        """
        self.remove(graph)
        nodes = self._nodes_of(capture)
        size = _GRAPH_BYTES + _NODE_BYTES * nodes if nodes else 0
        pieces = -(-(self._live[device] + size) // _PIECE_BYTES) * _PIECE_BYTES
        if pieces > self.taken[device]:
            self._gpus[device].take(pieces - self.taken[device])
            self.taken[device] = pieces
        self._graphs[graph] = device, size
        self._live[device] += size

    def bounds(self, device: int) -> tuple[int, int]:
        """Returns the least and the most memory, in bytes, that a device's graphs may need."""
        taken = self.taken[device]
        return int(_LEAST * taken), int(_MOST * taken)

    def remove(self, graph: int) -> None:
        """Makes a graph's memory available to later graphs; does nothing for an unknown graph."""
        device, size = self._graphs.pop(graph, (0, 0))
        self._live[device] -= size
