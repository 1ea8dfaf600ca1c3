"""Computes the range of a run's peaks if sizes of blocks or times of frees are uncertain.

The memory of some kernels is known only as a range. plimsoll replays the run several times, with
different sizes from these ranges. One replay uses the least sizes, and one the largest. Two
replays are not enough, because reserved memory may be highest with sizes in between, if a freed
block is a bad fit for the next request. So plimsoll also draws sizes at random. In each draw, at
least about half of the kernels have their expected size.

A block that other streams also use, such as NCCL's or those of `record_stream`, can be reused only
when these streams are done. The host's pace decides how many requests the program makes until then.
So the run is also replayed with other delays between the free of such a block and its reuse. A
delay is counted in events. One replay drops the delays of the simulation (factor 0), one multiplies
them by 3, and one by 10. If ranks send to each other (send/recv), a rank waits for its neighbours,
so a further replay multiplies the delays by 40. Other replays draw a factor at random for each
block.

Up to PyTorch 2.11 the driver's addresses decide which of equally large free blocks is taken. With
one GPU the addresses always descended in our measurements. With several GPUs they do not, so a job
is also replayed with segments in other orders. On two H100s two runs of a job differed only because
of the order of segments.

Delays and orders change the peak of allocated memory too: PyTorch counts a whole block as
allocated, and which free block a request gets decides how much of the block is left over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from plimsoll import _core
from plimsoll.engine.replays.replay import AMPLE_MEMORY
from plimsoll.prediction.assumed import ANY_ADDRESSES, FREE_LATER
from plimsoll.prediction.child.caught_failures import share_try
from plimsoll.recordings.events import Action, EventBatch
from plimsoll.torch.building.versions import follows
from plimsoll.torch.simulated.memory_limits import without_limit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from plimsoll.prediction.child.high_water import HighWaterMark
    from plimsoll.torch.simulated.library import UncertainMemory
    from plimsoll.torch.simulated.simulation import Simulation

_DRAWS = 100
_MOST_EVENTS = 20_000_000
"""The draws of one kind replay about this many events at most. A long run gets fewer draws."""
_AS_THOUGHT = (0.85, 0.5)
"""The probability that a kernel's memory has its expected size, in the first draw and in the last.

If a row of data/cudnn_workspaces.csv is left out, its neighbour predicts it in 80 to 90 % of cases.
The convolutions of one program are alike, though: on an H200, plimsoll predicted half of the sizes
of a GAN, and of a network of depthwise convolutions with unusual widths.
"""
_LATER = (0, 3, 10)
"""Factors on the delay of a block's reuse.

The peaks that four jobs reached on two H100s lay in the range that these factors predict.
"""
_LATER_WITH_SENDS = (*_LATER, 40)
_PACES_DRAWN = 6
_ORDERS_DRAWN = 8
_KEPT = (
    Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED, Action.SEGMENT_FREE,
    Action.SEGMENT_UNMAP,
)  # fmt: skip
"""The events to replay: allocations and frees, and the releases of cached segments."""
_TAKEN = (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED)
"""The events that a replay adds for memory that a kernel allocates and frees."""
_ADDRESS = 1 << 62
"""The address given to a kernel's uncertain memory: higher than any address of a run."""
_MOST_CAUGHT = 8
"""How many caught failures a replay may move to an earlier request. Each takes a further replay."""
_OWN_ADDRESS, _APART = 1 << 52, 1 << 9
"""The first of the unique addresses for blocks, and the distance from one to the next."""


@dataclass(frozen=True)
class UncertainPeaks:
    """The range of the peaks.

    Attributes:
        allocated: The least and the greatest peak of allocated memory; None if it is certain.
        reserved: The least and the greatest peak of reserved memory; None if all sizes are known
            and the host's pace does not matter.
        depends_on: The assumptions that change a peak: FREE_LATER, ANY_ADDRESSES, or both.
        fails_with: The highest allocated peak of the replays that ran out of memory; None if none
            did.
    """

    allocated: tuple[int, int] | None = None
    reserved: tuple[int, int] | None = None
    depends_on: tuple[str, ...] = ()
    fails_with: int | None = None


def uncertain_peaks(
    simulation: Simulation, device: int, peak: HighWaterMark, room_bytes: int
) -> UncertainPeaks:
    """Returns the range of a device's peaks.

    Args:
        simulation: The run.
        device: The device's number.
        peak: The device's peaks in the simulated run, before any replay.
        room_bytes: The memory that PyTorch's allocator can reserve on the device.
    """
    memory = [each for each in simulation.library.uncertain_memory() if each.device == device]
    is_of_job = device in simulation.communicators.most
    columns = simulation.allocators[device].engine.history_columns()
    waits = is_of_job or _has_late_frees(*columns[:2])
    if not memory and not waits:
        return UncertainPeaks()
    run = _Run(simulation, device, memory, waits=waits)
    most = _MOST_EVENTS // max(1, run.events)
    thought = {each.kind: each.bytes for each in memory}
    later = _LATER_WITH_SENDS if simulation.groups_with_sends else _LATER
    sizes = [_Draw(each) for each in _draws(memory, most)] if memory else []
    paces = [_Draw(thought, each) for each in _paces(later, run.late_frees)][: max(0, most)]
    orders = [_Draw(thought, order=1 + each) for each in range(min(most, _ORDERS_DRAWN))]
    if not is_of_job or follows("prefers_first_made", simulation.version):
        orders = []
    if not sizes and not paces and not orders:
        return UncertainPeaks()
    # If the program caught failures, their requests filled the card, whatever the sizes were.
    room = room_bytes if run.failures else AMPLE_MEMORY
    as_thought = run.replay(_Draw(thought), room)
    peaks = [run.replay(draw, room) for draw in (*sizes, *paces, *orders)]
    # Only the draws of sizes are checked for failures. Later frees cannot make a request fail:
    # before PyTorch raises an error, it waits for the streams that still use freed blocks.
    failing = [
        run.replay(draw) if each.failed else each
        for each, draw in zip(peaks, sizes, strict=False)
        if each.failed or (each.reserved_bytes > room_bytes and run.replay(draw, room_bytes).failed)
    ]

    def bounds(size: int, thought: int, drawn: list[int]) -> tuple[int, int]:
        return size + min(0, min(drawn) - thought), size + max(0, max(drawn) - thought)

    reserved = bounds(
        peak.reserved_bytes, as_thought.reserved_bytes, [each.reserved_bytes for each in peaks]
    )
    # The run's own peak may be lower than that of `as_thought`, because PyTorch returned cached
    # memory. A replay that fails needs more than the card has all the same.
    reserved = (reserved[0], max(reserved[1], *(each.reserved_bytes for each in failing), 0))
    allocated = bounds(
        peak.allocated_bytes, as_thought.allocated_bytes, [each.allocated_bytes for each in peaks]
    )
    is_allocated_known = allocated[0] == allocated[1]
    if is_allocated_known and reserved[0] == reserved[1] and not sizes:
        return UncertainPeaks()
    of_what = {
        FREE_LATER: peaks[len(sizes) : len(sizes) + len(paces)],
        ANY_ADDRESSES: peaks[len(sizes) + len(paces) :],
    }
    depends_on = tuple(
        what for what, found in of_what.items() if any(each[:2] != as_thought[:2] for each in found)
    )
    return UncertainPeaks(
        None if is_allocated_known and not sizes else allocated,
        reserved,
        depends_on,
        max((each.allocated_bytes for each in failing), default=None),
    )


@dataclass(frozen=True)
class _Draw:
    """One variant of a run.

    Attributes:
        sizes: Bytes of uncertain memory, by kind.
        paces: For each freed block that had to wait for other streams, the factor on the length of
            this wait; None leaves the waits unchanged.
        order: The seed of a random order of segments; 0 for descending addresses.
    """

    sizes: Mapping[int, int]
    paces: NDArray[np.float64] | None = None
    order: int = 0


def _paces(later: Sequence[int], count: int) -> Iterator[NDArray[np.float64]]:
    """Yields arrays with a factor for each delayed free.

    In the first arrays, all frees have the same factor. Later, each factor is drawn at random.
    """
    if count == 0:
        return
    for factor in later:
        yield np.full(count, float(factor))
    random = np.random.default_rng(0)
    for _ in range(_PACES_DRAWN):
        yield random.choice(np.array((1, *later), dtype=np.float64), count)


def _draws(memory: Sequence[UncertainMemory], most: int) -> Iterator[dict[int, int]]:
    """Yields sizes for each kind of memory: first the least, then the most, then random ones."""
    kinds = {each.kind: (each.bytes, each.least, each.most) for each in memory}
    thought, least, greatest = np.array(list(kinds.values()), dtype=np.float64).T
    random = np.random.default_rng(0)
    yield dict(zip(kinds, least.astype(int).tolist(), strict=True))
    yield dict(zip(kinds, greatest.astype(int).tolist(), strict=True))
    for as_thought in np.linspace(*_AS_THOUGHT, max(0, min(most, _DRAWS))):
        other = least + random.random(len(kinds)) * (greatest - least)
        sizes = np.where(random.random(len(kinds)) < as_thought, thought, other)
        yield dict(zip(kinds, sizes.astype(int).tolist(), strict=True))


class _Peaks(NamedTuple):
    allocated_bytes: int
    reserved_bytes: int
    failed: bool


class _Run:
    """The events of a device's run, for replays with other sizes and other times of frees.

    Args:
        simulation: The run.
        device: The device's number.
        memory: The memory with uncertain sizes.
        waits: Whether replays may vary how long a freed block waits for other streams.

    Attributes:
        events: The number of events in one replay.
        late_frees: The number of freed blocks that waited for other streams before their reuse.
        failures: The number of failed requests after which the program went on.
    """

    def __init__(
        self,
        simulation: Simulation,
        device: int,
        memory: Sequence[UncertainMemory],
        *,
        waits: bool,
    ) -> None:
        self._device = device
        self._allocator = simulation.allocators[device]
        action, address, size, stream, _, context, _ = self._allocator.engine.history_columns()
        self._stacks = simulation.site_stacks()
        keep = np.isin(action, _KEPT)
        requests = np.flatnonzero(action == Action.ALLOC)
        frees = np.flatnonzero(action == Action.FREE_REQUESTED)
        places = []
        for each in memory:
            if each.bytes == 0:
                places.append(_after(requests, each.allocations, frees, each.frees, action))
                continue
            # The program may have ended before the kernel allocated this memory.
            at = int(requests[each.allocations]) if each.allocations < len(requests) else len(keep)
            places.append(at)
            if at < len(keep):
                _leave_out(keep, action, address, at)
        self.events = int(np.count_nonzero(keep))
        columns: dict[str, NDArray[Any]] = {
            "action": action, "address": address, "size": size, "stream": stream,
            "context": context,
        }  # fmt: skip
        self._columns = {name: column[keep] for name, column in columns.items()}
        kept_before = np.concatenate(([0], np.cumsum(keep)))
        self._places = kept_before[places]
        self._failures = kept_before[np.flatnonzero(action == Action.OOM)]
        self._contexts_of_failures = context[action == Action.OOM]
        self.failures = len(self._failures)
        self._kinds = [each.kind for each in memory]
        self._streams = np.array([each.stream for each in memory], dtype=np.uint64)
        none = np.zeros(0, dtype=np.int64)
        self._freed, self._free_again = self._find_late_frees() if waits else (none, none)
        self.late_frees = len(self._freed)

    def _find_late_frees(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the events of frees that had to wait, and the events at which their waits ended.

        Also gives every block its own address. In the run, a later block may take the address of a
        freed block. In a replay with longer waits, the freed block may still be waiting then.
        """
        action, address = self._columns["action"], self._columns["address"].copy()
        blocks: dict[int, tuple[int, int]] = {}
        found: list[tuple[int, int]] = []
        for place, (what, where) in enumerate(zip(action.tolist(), address.tolist(), strict=True)):
            if what == Action.ALLOC:
                blocks[where] = (_OWN_ADDRESS + place * _APART, 0)
            elif what not in _TAKEN:
                continue
            own, freed = blocks[where]
            address[place] = own
            if what == Action.FREE_REQUESTED:
                blocks[where] = (own, place)
            elif what == Action.FREE_COMPLETED and place > freed + 1:
                found.append((freed, place))
        self._columns["address"] = address
        freed_at, again_at = np.array(found, dtype=np.int64).reshape(-1, 2).T
        return freed_at, again_at

    def _at_pace(
        self, paces: NDArray[np.float64] | None
    ) -> tuple[Mapping[str, NDArray[Any]], NDArray[np.int64], NDArray[np.int64]]:
        """Multiplies the waits of delayed frees by `paces`. Returns the events in the new order.

        Also returns the places among these events: of each allocation of uncertain memory by a
        kernel, and of each request that failed.
        """
        if paces is None:
            return self._columns, self._places, self._failures
        when = np.arange(len(self._columns["action"]), dtype=np.float64)
        lateness = (self._free_again - self._freed) * paces
        when[self._free_again] = self._freed + np.maximum(lateness, 0.25) + 0.25
        order = np.argsort(when, kind="stable")
        place_of = np.empty(len(order) + 1, dtype=np.int64)
        place_of[order] = np.arange(len(order))
        place_of[-1] = len(order)
        columns = {name: column[order] for name, column in self._columns.items()}
        return columns, place_of[self._places], place_of[self._failures]

    def replay(self, draw: _Draw, room_bytes: int = AMPLE_MEMORY) -> _Peaks:
        """Replays the run with a draw's sizes and times, and returns the peaks.

        In the run, the program may have caught errors of failed requests. If a request under the
        same `try` fails earlier in the replay, the program would have caught that error. So the
        replay goes on without the blocks that the program requested in between. After
        `_MOST_CAUGHT` such requests, the next one ends the replay.
        """
        sizes = draw.sizes
        before, places, failures = self._at_pace(draw.paces)
        taken = np.array([sizes[kind] for kind in self._kinds], dtype=np.uint64)
        some = taken > 0
        count = int(np.count_nonzero(some))
        added: dict[str, NDArray[Any]] = {
            "action": np.tile(np.array(_TAKEN, dtype=np.uint8), count),
            "address": np.full(3 * count, _ADDRESS, dtype=np.uint64),
            "size": np.repeat(taken[some], 3),
            "stream": np.repeat(self._streams[some], 3),
            "context": np.repeat(self._context_at(before, places[some]), 3),
        }
        at = np.repeat(places[some], 3)
        columns = {name: np.insert(before[name], at, new) for name, new in added.items()}
        failures = failures + np.searchsorted(np.sort(at), failures, side="right")
        order = np.argsort(failures)
        failures, contexts = failures[order], self._contexts_of_failures[order]
        peaks, failed_at = self._replayed(columns, room_bytes, draw.order)
        for _ in range(_MOST_CAUGHT):
            if failed_at is None:
                break
            earlier = self._stacks[int(columns["context"][failed_at])]
            caught = next(
                (
                    i
                    for i in np.flatnonzero(failures > failed_at)
                    if share_try(earlier, self._stacks[int(contexts[i])])
                ),
                None,
            )
            if caught is None:
                break
            keep = _without_requests(columns, failed_at, int(failures[caught]))
            columns = {name: column[keep] for name, column in columns.items()}
            failures = np.concatenate(([0], np.cumsum(keep)))[failures[caught + 1 :]]
            contexts = contexts[caught + 1 :]
            peaks, failed_at = self._replayed(columns, room_bytes, draw.order)
        return peaks

    def _context_at(
        self, columns: Mapping[str, NDArray[Any]], places: NDArray[np.int64]
    ) -> NDArray[np.uint32]:
        """Returns the call sites of the events after which kernels take uncertain memory."""
        context: NDArray[np.uint32] = columns["context"]
        if not len(context):
            return np.zeros(len(places), dtype=np.uint32)
        return context[np.maximum(places - 1, 0)]

    def _replayed(
        self, columns: Mapping[str, NDArray[Any]], room_bytes: int, order: int
    ) -> tuple[_Peaks, int | None]:
        """Returns the peaks of a replay, and the index of the event that ran out of memory."""
        none = np.zeros(len(columns["action"]), dtype=np.uint64)
        kept = {name: column for name, column in columns.items() if name != "context"}
        batch = EventBatch.of({**kept, "time_us": none, "pool_first": none, "pool_second": none})
        name = self._allocator.name
        replay = _core.Replay(
            name, without_limit(self._allocator.conf) if name == "native" else "",
            self._allocator.version, None, room_bytes, None, False, _core.Completion.recorded,
            None, self._device, _core.RecordedAllocator[name],
        )  # fmt: skip
        if order:
            replay.scatter_segments(order)
        replay.feed(batch.to_core())
        replay.finish()
        found = replay.statistics()
        peaks = _Peaks(
            found["allocated_bytes.all.peak"], found["reserved_bytes.all.peak"], replay.stopped
        )
        return peaks, replay.first_oom


def _has_late_frees(action: NDArray[np.uint8], address: NDArray[np.uint64]) -> bool:
    """Returns whether a freed block had to wait for another stream before its reuse."""
    again = np.flatnonzero(action == Action.FREE_COMPLETED)
    again = again[again > 0]
    is_at_once = (action[again - 1] == Action.FREE_REQUESTED) & (
        address[again - 1] == address[again]
    )
    return not bool(is_at_once.all())


def _after(
    requests: NDArray[np.int64], count: int, frees: NDArray[np.int64], freed: int,
    action: NDArray[np.uint8],
) -> int:  # fmt: skip
    """Returns the index of the event that follows `count` requests and `freed` frees."""
    request = int(requests[min(count, len(requests)) - 1]) if count else -1
    free = int(frees[min(freed, len(frees)) - 1]) if freed else -1
    is_done = free + 1 < len(action) and action[free + 1] == Action.FREE_COMPLETED
    return max(request, free + (freed > 0 and is_done)) + 1


def _leave_out(keep: NDArray[Any], action: NDArray[Any], address: NDArray[Any], at: int) -> None:
    """Clears `keep` for the events of the block allocated at `at`: its allocation and its frees."""
    keep[at] = False
    for later in range(at + 1, len(keep)):
        if address[later] == address[at] and action[later] in _TAKEN:
            keep[later] = False
            if action[later] == Action.FREE_COMPLETED:
                return


def _without_requests(
    columns: Mapping[str, NDArray[Any]], start: int, end: int
) -> NDArray[np.bool_]:
    """Returns which events remain without the allocations from `start` to `end` and their frees."""
    action, address = columns["action"].tolist(), columns["address"].tolist()
    keep = np.ones(len(action), dtype=np.bool_)
    left: set[int] = set()
    for at in range(start, len(action)):
        if action[at] == Action.ALLOC:
            (left.add if at < end else left.discard)(address[at])
            keep[at] = at >= end
        elif action[at] in _TAKEN and address[at] in left:
            keep[at] = False
            if action[at] == Action.FREE_COMPLETED:
                left.remove(address[at])
        if at >= end and not left:
            break
    return keep
