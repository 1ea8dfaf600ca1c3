"""A recorded history: the events of each device and the state they ended in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from plimsoll import _core
from plimsoll.base.errors import InputError
from plimsoll.base.process_place import ProcessPlace
from plimsoll.base.units import format_count
from plimsoll.recordings.events import EventBatch, Frame
from plimsoll.recordings.label import Label

if TYPE_CHECKING:
    from collections.abc import Iterator


class DeviceTrace(ABC):
    """The history of one device.

    Attributes:
        device: Its number.
        event_count: How many events there are.
        segments: The segments at the end, by address; their contexts are stack numbers.
    """

    device: int
    event_count: int
    segments: list[_core.SegmentInfo]

    @abstractmethod
    def batches(self) -> Iterator[EventBatch]:
        """Go through the events, in order, some 100,000 at a time."""

    def load(self) -> EventBatch:
        """All events as one batch."""
        return EventBatch.join(self.batches())

    def frames(self, stack: int) -> list[Frame]:  # noqa: ARG002
        """The call stack of a number, innermost frame first; empty for 0, or if it is not known."""
        return []

    @abstractmethod
    def start(self, conf: str, version: str) -> list[_core.SegmentInfo]:
        """The segments that existed before the first event; empty for a complete history.

        A ring buffer that overflowed, or a recording that was switched on late, is taken back to
        its start from the final segments, by the rules of configuration `conf`.

        Raises:
            InputError: If that is not possible, with the reason.
        """


class LoadedTrace(DeviceTrace):
    """A history that is in memory as a whole."""

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
    """A moment that somebody named, such as the end of a training step.

    Attributes:
        event: How many events of `device` came before it.
        time_us: Microseconds since the epoch.
        name: "step" for the end of a step, or what the program said.
        device: Whose events are counted; None where the recording has one device only.
    """

    event: int
    time_us: int
    name: str
    device: int | None = None


@dataclass(frozen=True)
class Recording:
    """All that one file holds.

    Attributes:
        name: The file, or what stands for it in messages.
        devices: The history of each device that has events, by device number.
        settings: `allocator_settings` of the snapshot, empty where there were none; where plimsoll
            recorded, with the "allocator", the "torch_version" and the "process".
        marks: Named moments, in order; PyTorch's snapshots have none.
        labels: Facts that PyTorch knew of addresses, in order; only plimsoll records them.
        dropped: How many events were lost because the writer could not follow.
        is_whole: Whether the recording ended in good order; False for a streaming trace that was
            cut, is damaged, or whose program died or still runs.
        damage: What is wrong with the file where its events end, if anything is.
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
        """What is missing of the history, a sentence each; none for one that is whole."""
        found = []
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
        """The labels of one device's addresses, in order."""
        return [label for label in self.labels if label.device == device]

    @property
    def process(self) -> ProcessPlace | None:
        """Where the recorded process ran; None where the recording does not say."""
        found = self.settings.get("process")
        return None if found is None else ProcessPlace.from_dict(found)

    @property
    def allocator(self) -> str:
        """Which allocator was recorded: "native", "elastic" or "uncached".

        A snapshot that PyTorch itself writes does not say; then it is PyTorch's own, "native".
        """
        return str(self.settings.get("allocator") or "native")

    def fragments_bytes(self, device: int) -> int | None:
        """What was free, in the end, in pieces of the elastic allocator's that were in use.

        None where the recording does not say, as those do that plimsoll's snapshots are not.
        """
        found = self.settings.get("fragments_bytes")
        size = found.get(str(device)) if isinstance(found, dict) else None
        return size if isinstance(size, int) and size >= 0 else None

    @property
    def version(self) -> str:
        """The version of PyTorch whose rules were at work, as far as the recording tells.

        PyTorch's own snapshots do not name it, but what they hold says 2.11 or older, 2.12 or 2.13,
        or newer; the newest of these is meant.
        """
        try:
            return _core.plain_version(str(self.settings["torch_version"]))
        except (KeyError, _core.ConfigError):
            return _core.NEWEST_VERSION

    @property
    def conf(self) -> str:
        """The PYTORCH_CUDA_ALLOC_CONF that the recorded program ran with.

        Raises:
            InputError: If no version of PyTorch that is known takes it.
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
