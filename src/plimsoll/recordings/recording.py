"""A recorded history: for each device, its events and its memory after the last event."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from plimsoll import _core
from plimsoll.base.errors import InputError
from plimsoll.base.process_place import ProcessPlace
from plimsoll.base.units import format_count
from plimsoll.recordings.earlier import Earlier
from plimsoll.recordings.events import EventBatch, Frame
from plimsoll.recordings.label import Label

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class DeviceTrace(ABC):
    """The history of one device.

    Attributes:
        device: The device's number.
        event_count: The number of events.
        segments: The segments after the last event, sorted by address. The `context` of a segment
            is the number of its call stack; `frames` returns the stack.
    """

    device: int
    event_count: int
    segments: list[_core.SegmentInfo]

    @abstractmethod
    def batches(self) -> Iterator[EventBatch]:
        """Yields the events in order, in batches of about 100,000."""

    def load(self) -> EventBatch:
        """Returns all events as one batch."""
        return EventBatch.join(self.batches())

    def frames(self, stack: int) -> list[Frame]:  # noqa: ARG002
        """Returns a call stack, innermost frame first; empty for 0 and unknown numbers."""
        return []

    @abstractmethod
    def start(self, conf: str, version: str) -> list[_core.SegmentInfo]:
        """Returns the segments before the first event; empty for a complete history.

        A history is incomplete if a ring buffer overflowed or the recording began late. plimsoll's
        traces contain the segments before the first event, but snapshots do not. For a snapshot,
        this method reconstructs them from the segments after the last event, by the rules of
        PyTorch's allocator.

        Args:
            conf: The recorded program's configuration of the allocator, as in
                PYTORCH_CUDA_ALLOC_CONF.
            version: The version of PyTorch that the program used.

        Raises:
            InputError: If the segments cannot be reconstructed; the message has the reason.
        """

    def start_stacks(self) -> dict[int, int]:
        """Returns the call stacks of blocks that are older than the first event, by address.

        Only recordings of simulated GPUs, and files that continue a recording, have such stacks.
        """
        return {}


def limit_within(limits: Sequence[int | None], least: int, below: int) -> int | None:
    """Returns the latest limit with `least <= limit < below`; None if there is none."""
    known = (limit for limit in reversed(limits) if limit is not None)
    return next((limit for limit in known if least <= limit < below), None)


def stacks_of_blocks(segments: Iterable[_core.SegmentInfo]) -> dict[int, int]:
    """Returns the number of each block's call stack, by the block's address."""
    return {b.address: b.context for segment in segments for b in segment.blocks if b.context}


class LoadedTrace(DeviceTrace):
    """A history that is held in memory."""

    BATCH = 1 << 18

    def __init__(
        self,
        device: int,
        events: EventBatch,
        segments: list[_core.SegmentInfo],
        file: _core.SnapshotFile | None = None,
    ) -> None:
        self.device = device
        self.events = events
        self.event_count = len(events)
        self.segments = segments
        self._file = file

    def batches(self) -> Iterator[EventBatch]:
        """See `DeviceTrace.batches`."""
        for begin in range(0, self.event_count, self.BATCH):
            yield self.events[begin : begin + self.BATCH]

    def load(self) -> EventBatch:
        """See `DeviceTrace.load`."""
        return self.events

    def frames(self, stack: int) -> list[Frame]:
        """See `DeviceTrace.frames`."""
        try:
            return self._file.stack(stack) if self._file is not None else []
        except IndexError:
            return []

    def start(self, conf: str, version: str) -> list[_core.SegmentInfo]:
        """See `DeviceTrace.start`."""
        columns = self.events.to_core()
        if _core.starts_from_nothing(columns, self.segments):
            return []
        try:
            return _core.reconstruct_start(columns, self.segments, conf, version)
        except _core.ReplayError as error:
            raise InputError(str(error)) from None


@dataclass(frozen=True)
class Mark:
    """A named moment, such as the end of a training step.

    Attributes:
        event: The number of events of `device` before the moment.
        time_us: Microseconds since the epoch.
        name: "step" for the end of a step, or a name that the program chose for the moment.
        device: The device whose events `event` counts; None if the recording has only one device.
    """

    event: int
    time_us: int
    name: str
    device: int | None = None


@dataclass(frozen=True)
class Recording:
    """The contents of one file.

    Attributes:
        name: The file's path, or another name of the recording that messages show.
        devices: The history of each device that has events, by device number.
        settings: `allocator_settings` of the snapshot; empty if it has none. A recording by
            plimsoll also has the "allocator", the "torch_version" and the "process".
        marks: Named moments, in order; PyTorch's snapshots have none.
        labels: Notes of what blocks are used for, such as "parameters", in order. Only plimsoll
            records them.
        dropped: The number of events lost because the writer was too slow.
        is_whole: Whether the recording was ended properly. False for a streaming trace that is
            truncated or damaged, or whose program was killed or still runs.
        damage: A description of the damage, if any. The events before the damage are readable.
    """

    name: str
    devices: list[DeviceTrace]
    settings: dict[str, Any] = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    dropped: int = 0
    is_whole: bool = True
    damage: str | None = None

    @property
    def problems(self) -> list[str]:
        """Returns a sentence for each gap in the history; empty for a complete history."""
        found = [] if self.earlier is None else self.earlier.problems()
        if self.dropped:
            lost = format_count(self.dropped, "event")
            found.append(f"{lost} found no room while it was recorded")
        count = sum(trace.event_count for trace in self.devices)
        if self.damage is not None:
            found.append(f"damaged after event {count:,} ({self.damage}); what follows is left out")
        elif not self.is_whole:
            found.append(
                f"ends after event {count:,} without an end: the program was killed or still runs, "
                "or the file was cut"
            )
        return found

    def labels_of(self, device: int) -> list[Label]:
        """Returns the labels of blocks on one device, in the order in which they were recorded."""
        return [label for label in self.labels if label.device == device]

    @property
    def process(self) -> ProcessPlace | None:
        """Returns the recorded process's place in its job (rank, host); None if unknown."""
        found = self.settings.get("process")
        return None if found is None else ProcessPlace.from_dict(found)

    @property
    def earlier(self) -> Earlier | None:
        """Returns the part of the recording that is older than this file; None if there is none."""
        found = self.settings.get("earlier")
        return None if found is None else Earlier.from_dict(found)

    @property
    def allocator(self) -> str:
        """The recorded allocator: "native", "elastic" (plimsoll's) or "uncached".

        PyTorch's own snapshots name no allocator; the answer is then "native", which is PyTorch's.
        """
        return str(self.settings.get("allocator") or "native")

    def fragments_bytes(self, device: int) -> int | None:
        """Returns the free bytes that share a granule with a live block, at the time of a snapshot.

        A granule is the unit in which the elastic allocator maps memory. Returns None if the
        recording lacks this figure; only plimsoll's snapshots have it.
        """
        found = self.settings.get("fragments_bytes")
        size = found.get(str(device)) if isinstance(found, dict) else None
        return size if isinstance(size, int) and size >= 0 else None

    def limits_of(self, device: int) -> list[int | None]:
        """Returns the most bytes that the process could reserve on a device, the latest limit last.

        A limit of None means that there is none. The list is empty if the recording does not say;
        only plimsoll's recordings do.
        """
        found = self.settings.get("limits")
        limits = found.get(str(device), []) if isinstance(found, dict) else []
        return list(limits) if isinstance(limits, list) else []

    @property
    def version(self) -> str:
        """The version of PyTorch in the recorded program, as far as the recording shows it.

        PyTorch's own snapshots do not name the version, but their contents show which of three
        ranges it is in: up to 2.11, 2.12 to 2.13, or from 2.14 on. The answer is then the newest
        known version in that range.
        """
        try:
            return _core.plain_version(str(self.settings["torch_version"]))
        except (KeyError, _core.ConfigError):
            return _core.NEWEST_VERSION

    @property
    def conf(self) -> str:
        """The PYTORCH_CUDA_ALLOC_CONF of the recorded program.

        Raises:
            InputError: If the PyTorch of version `self.version` does not accept the configuration.
        """
        settings = self.settings
        conf = settings.get("PYTORCH_CUDA_ALLOC_CONF", settings.get("last_allocator_settings", ""))
        try:
            _core.AllocatorConfig.parse(str(conf or ""), self.version)
        except _core.ConfigError as error:
            raise InputError(
                f"{self.name}: recorded under a configuration that is not known: {error}"
            ) from None
        return str(conf or "")
