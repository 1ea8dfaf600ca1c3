"""The memory that the driver takes for CUDA graphs, outside PyTorch's allocator.

The driver takes one part for each graph that can be launched, and one for each kernel and copy in
it. Both sizes were measured on an H100 with driver 580 (benchmarks/results/serving.jsonl), and fit
models of dense layers to 5 %. Quantized weights and experts, whose kernels are larger, took up to
39 % more. The driver keeps the memory of a destroyed graph for the next graph, until the process
ends.
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
"""The least and the most that graphs may need, relative to the memory taken for them."""
_PIECE_BYTES = 2 << 20
"""The driver takes memory of the card in such pieces."""


class GraphMemory:
    """The memory of all graphs of a process.

    Attributes:
        taken: By device, the memory that the driver took for graphs, in bytes.
    """

    def __init__(self, gpus: list[SimulatedGpu], nodes_of: Callable[[int], int]) -> None:
        """Begins without graphs.

        Args:
            gpus: The devices.
            nodes_of: Returns how many kernels and copies a capture has, by its number.
        """
        self.taken: Counter[int] = Counter()
        self._gpus = gpus
        self._nodes_of = nodes_of
        self._live: Counter[int] = Counter()
        self._graphs: dict[int, tuple[int, int]] = {}

    def add(self, graph: int, device: int, capture: int) -> None:
        """Takes the memory of a captured graph.

        Args:
            graph: The graph's identity.
            device: The graph's device.
            capture: The number of the graph's capture.

        Raises:
            OutOfMemoryError: If the card has too little; nothing is changed then.
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
        """Returns the least and the most, in bytes, that the graphs of a device may take."""
        taken = self.taken[device]
        return int(_LEAST * taken), int(_MOST * taken)

    def remove(self, graph: int) -> None:
        """Frees a graph's memory for other graphs; does nothing if it has none."""
        device, size = self._graphs.pop(graph, (0, 0))
        self._live[device] -= size
