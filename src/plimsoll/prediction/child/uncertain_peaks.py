"""The range of a run's peaks where kernels took memory of which only a range is known.

The run is replayed with other sizes of that memory. The two in which all of it is as small, or as
large, as it can be are not enough: the most may be reserved with sizes that fit each other's blocks
badly. So sizes are also drawn at random, most of them what they are thought to be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from plimsoll import _core
from plimsoll.engine.replays.replay import AMPLE_MEMORY
from plimsoll.recordings.events import Action, EventBatch
from plimsoll.torch.simulated.memory_limits import without_limit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from plimsoll.prediction.child.high_water import HighWaterMark
    from plimsoll.torch.simulated.library import UncertainMemory
    from plimsoll.torch.simulated.simulation import Simulation

_DRAWS = 30
_MOST_EVENTS = 20_000_000
"""So many events are replayed in all: of a long run there are fewer draws."""
_AS_THOUGHT = 0.85
"""The share of kernels that take what is thought. Where a row of data/cudnn_workspaces.csv is left
out, its neighbour tells it in 80 to 90 % of cases."""
_KEPT = (
    Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED, Action.SEGMENT_FREE,
    Action.SEGMENT_UNMAP,
)  # fmt: skip
"""Requests, and where the program emptied the cache."""
_TAKEN = (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED)
"""The events of memory that a kernel takes and gives back."""
_ADDRESS = 1 << 62
"""Such memory has this address, which is higher than any of a run."""


@dataclass(frozen=True)
class UncertainPeaks:
    """The range of the peaks.

    Attributes:
        allocated: The least and the most of the allocated memory; None where all sizes are known.
        reserved: The same of the reserved memory.
        fails_with: The most that is allocated in a run that the room is too little for; None where
            there was none.
    """

    allocated: tuple[int, int] | None = None
    reserved: tuple[int, int] | None = None
    fails_with: int | None = None


def uncertain_peaks(
    simulation: Simulation, device: int, peak: HighWaterMark, room_bytes: int
) -> UncertainPeaks:
    """Returns the range of a device's peaks.

    Args:
        simulation: The run.
        device: The device's number.
        peak: The peaks of the run itself.
        room_bytes: The memory that PyTorch's allocator can reserve there.
    """
    memory = [each for each in simulation.library.uncertain_memory() if each.device == device]
    if not memory:
        return UncertainPeaks()
    run = _Run(simulation, device, memory)
    draws = list(_draws(memory, _MOST_EVENTS // max(1, run.events)))
    as_thought = run.replay({each.kind: each.bytes for each in memory})
    peaks = [run.replay(sizes) for sizes in draws]
    failing = [
        each.allocated_bytes
        for each, sizes in zip(peaks, draws, strict=True)
        if each.reserved_bytes > room_bytes and run.replay(sizes, room_bytes).failed
    ]

    def bounds(size: int, thought: int, drawn: list[int]) -> tuple[int, int]:
        return size + min(0, min(drawn) - thought), size + max(0, max(drawn) - thought)

    return UncertainPeaks(
        bounds(
            peak.allocated_bytes,
            as_thought.allocated_bytes,
            [each.allocated_bytes for each in peaks],
        ),
        bounds(
            peak.reserved_bytes,
            as_thought.reserved_bytes,
            [each.reserved_bytes for each in peaks],
        ),
        max(failing, default=None),
    )


def _draws(memory: Sequence[UncertainMemory], most: int) -> Iterator[dict[int, int]]:
    """Sizes by kind: the least, the most, and random ones."""
    kinds = {each.kind: (each.bytes, each.least, each.most) for each in memory}
    thought, least, greatest = np.array(list(kinds.values()), dtype=np.float64).T
    random = np.random.default_rng(0)
    yield dict(zip(kinds, least.astype(int).tolist(), strict=True))
    yield dict(zip(kinds, greatest.astype(int).tolist(), strict=True))
    for _ in range(min(most, _DRAWS)):
        other = least + random.random(len(kinds)) * (greatest - least)
        sizes = np.where(random.random(len(kinds)) < _AS_THOUGHT, thought, other)
        yield dict(zip(kinds, sizes.astype(int).tolist(), strict=True))


class _Peaks(NamedTuple):
    allocated_bytes: int
    reserved_bytes: int
    failed: bool


class _Run:
    """A device's run, in which the memory of a kind can have another size.

    Attributes:
        events: How many are replayed.
    """

    def __init__(
        self, simulation: Simulation, device: int, memory: Sequence[UncertainMemory]
    ) -> None:
        self._device = device
        self._allocator = simulation.allocators[device]
        action, address, size, stream, *_ = self._allocator.engine.history_columns()
        keep = np.isin(action, _KEPT)
        requests = np.flatnonzero(action == Action.ALLOC)
        places = []
        for each in memory:
            # The program may have ended before it took it.
            at = int(requests[each.allocations]) if each.allocations < len(requests) else len(keep)
            places.append(at)
            if each.bytes and at < len(keep):
                _leave_out(keep, action, address, at)
        self.events = int(np.count_nonzero(keep))
        columns: dict[str, NDArray[Any]] = {
            "action": action, "address": address, "size": size, "stream": stream,
        }  # fmt: skip
        self._columns = {name: column[keep] for name, column in columns.items()}
        kept_before = np.concatenate(([0], np.cumsum(keep)))
        self._places = kept_before[places]
        self._kinds = [each.kind for each in memory]
        self._streams = np.array([each.stream for each in memory], dtype=np.uint64)

    def replay(self, sizes: Mapping[int, int], room_bytes: int = AMPLE_MEMORY) -> _Peaks:
        """The most that is allocated and reserved, with a size for each kind."""
        taken = np.array([sizes[kind] for kind in self._kinds], dtype=np.uint64)
        some = taken > 0
        count = int(np.count_nonzero(some))
        added: dict[str, NDArray[Any]] = {
            "action": np.tile(np.array(_TAKEN, dtype=np.uint8), count),
            "address": np.full(3 * count, _ADDRESS, dtype=np.uint64),
            "size": np.repeat(taken[some], 3),
            "stream": np.repeat(self._streams[some], 3),
        }
        at = np.repeat(self._places[some], 3)
        columns = {name: np.insert(self._columns[name], at, new) for name, new in added.items()}
        none = np.zeros(len(columns["action"]), dtype=np.uint64)
        batch = EventBatch.of({**columns, "time_us": none, "pool_first": none, "pool_second": none})
        name = self._allocator.name
        replay = _core.Replay(
            name, without_limit(self._allocator.conf) if name == "native" else "",
            self._allocator.version, None, room_bytes, None, False, _core.Completion.recorded,
            None, self._device, _core.RecordedAllocator[name],
        )  # fmt: skip
        replay.feed(batch.to_core())
        replay.finish()
        peaks = replay.statistics()
        return _Peaks(
            peaks["allocated_bytes.all.peak"], peaks["reserved_bytes.all.peak"], replay.stopped
        )


def _leave_out(keep: NDArray[Any], action: NDArray[Any], address: NDArray[Any], at: int) -> None:
    """Leaves out the events of a block: where it was allocated, and its frees."""
    keep[at] = False
    for later in range(at + 1, len(keep)):
        if address[later] == address[at] and action[later] in _TAKEN:
            keep[later] = False
            if action[later] == Action.FREE_COMPLETED:
                return
