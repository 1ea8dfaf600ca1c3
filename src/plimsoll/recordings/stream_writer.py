"""Writes a streaming trace while its events happen; `stream_format` describes the format."""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from plimsoll import _core
from plimsoll.base.errors import InputError
from plimsoll.base.files import exists_already
from plimsoll.recordings.events import COLUMNS, EventBatch, Frame
from plimsoll.recordings.schema import EVENT_SCHEMA
from plimsoll.recordings.segment_rows import segment_to_json
from plimsoll.recordings.stream_format import FORMAT, KEY, MOST_ROWS, SUM_KEY, checksum_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from plimsoll.base.process_place import ProcessPlace

_MOST_BYTES = 1 << 20  # the size of the buffer that collects Arrow's small writes
_NEW = np.uint32(0xFFFFFFFF)  # the number of a stack that the file does not contain yet


class StreamWriter:
    """Writes a streaming trace. When `write` returns, the data given to it is in the file.

    Attributes:
        size_bytes: The size of the file.
        first_bytes: The size of the file after its first batch.
        largest_bytes: The size of the largest batch.

    Args:
        path: The path of the file, which must not exist.
        frames: A function that returns the frames of a call stack, given its number.
        settings: The settings of the recorded allocator, as in PyTorch's snapshots.

    Raises:
        InputError: If `path` exists already, or cannot be written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        frames: Callable[[int], Sequence[Frame]],
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.path = Path(path)
        self._spell = frames
        self._frames: dict[Frame, int] = {}
        # Maps a stack's number in the recorder (the index) to its number in the file.
        self._numbers = np.array([0], dtype=np.uint32)
        # Maps the numbers of a stack's frames to the stack's number in the file.
        self._stacks: dict[tuple[int, ...], int] = {}
        header = json.dumps({"format": FORMAT, "settings": dict(settings or {})}).encode()
        self._sum = zlib.crc32(header)
        self.size_bytes = self.first_bytes = self.largest_bytes = 0
        self._file = _WholeWrites(self.path)
        # Arrow writes each part of a batch separately. Writes into this buffer need no GIL.
        self._parts = pa.BufferedOutputStream(pa.PythonFile(self._file, "w"), _MOST_BYTES)
        try:
            self._arrow = pa.ipc.new_stream(
                self._parts,
                EVENT_SCHEMA.with_metadata({KEY: header, SUM_KEY: str(self._sum)}),
                options=pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False),
            )
            self._send()
        except OSError as error:
            self._file.close()
            self.path.unlink()
            raise InputError(f"{path}: cannot be written: {error.strerror}") from None

    def write(
        self,
        devices: NDArray[np.int32],
        events: EventBatch,
        *,
        marks: Sequence[tuple[int, int, str]] = (),
        labels: Sequence[tuple[int, int, int, str]] = (),
        start: Mapping[int, list[_core.SegmentInfo]] | None = None,
        end: Mapping[int, list[_core.SegmentInfo]] | None = None,
        dropped: int = 0,
        process: ProcessPlace | None = None,
        limits: Mapping[int, int | None] | None = None,
        ended: bool = False,
    ) -> None:
        """Appends events of any devices, in order.

        Args:
            devices: The device of each event.
            events: The events. Their column `stack` has the numbers that `frames` takes.
            marks: Moments that the program named, each as (row, time, name). The first event after
                the moment is in this row of `events`.
            labels: Labels of blocks, each as (row, device, address, category). The first event
                after the label is in this row of `events`.
            start: For the first batch: the segments of each device before its first event.
            end: For the last batch: the segments of each device after its last event.
            dropped: The number of events lost so far.
            process: The process's place in its job, if it has become known.
            limits: The most bytes that the process may reserve, of each device where this has
                changed; None for no limit.
            ended: Whether this is the last batch.

        Raises:
            OSError: If the file cannot be written.
        """
        for begin in range(0, max(len(events), 1), MOST_ROWS):
            stop = begin + MOST_ROWS
            is_first, is_last = begin == 0, stop >= len(events)
            said: dict[str, list[tuple[int, int, int]]] = {}
            for row, device, address, category in labels:
                if begin <= row and (row < stop or is_last):
                    said.setdefault(category, []).append((row - begin, device, address))
            self._write(
                devices[begin:stop],
                events[begin:stop],
                {
                    "marks": [
                        [row - begin, time_us, name]
                        for row, time_us, name in marks
                        if begin <= row and (row < stop or is_last)
                    ],
                    "labels": said,
                    "start": (start or {}) if is_first else {},
                    "end": (end or {}) if is_last else {},
                    "dropped": dropped,
                    "process": asdict(process) if process and is_first else None,
                    "limits": dict(limits or {}) if is_first else {},
                    "ended": ended and is_last,
                },
            )

    def _write(self, devices: NDArray[np.int32], events: EventBatch, facts: dict[str, Any]) -> None:
        known = len(self._frames)
        spelled: dict[int, tuple[int, ...]] = {}
        stacks = self._renumber(events.stack, spelled)
        for name in ("start", "end"):
            facts[name] = {
                device: [segment_to_json(s, lambda n: self._number(n, spelled)) for s in of]
                for device, of in facts[name].items()
            }
        facts |= {"stacks": spelled, "frames": list(self._frames)[known:] if spelled else []}
        facts = {name: value for name, value in facts.items() if value}
        text = json.dumps(facts).encode() if facts else b""
        columns = [stacks if name == "stack" else getattr(events, name) for name in COLUMNS]
        batch = pa.RecordBatch.from_arrays(
            [pa.array(column) for column in (devices, *columns)], schema=EVENT_SCHEMA
        )
        self._sum = checksum_of(self._sum, text, devices, columns)
        self._arrow.write_batch(batch, {KEY: text, SUM_KEY: str(self._sum)})
        self.largest_bytes = max(self.largest_bytes, self._send())
        self.first_bytes = self.first_bytes or self.size_bytes

    def _send(self) -> int:
        self._parts.flush()
        sent = self._file.send()
        self.size_bytes += sent
        return sent

    def _renumber(
        self, stacks: NDArray[np.uint32], spelled: dict[int, tuple[int, ...]]
    ) -> NDArray[np.uint32]:
        """Returns the number that each of these stacks has in the file.

        Stacks that the file does not contain yet get the next numbers, and are added to `spelled`.
        """
        most = int(stacks.max(initial=0))
        if most >= len(self._numbers):
            longer = np.full(2 * most + 1, _NEW, dtype=np.uint32)
            longer[: len(self._numbers)] = self._numbers
            self._numbers = longer
        numbers: NDArray[np.uint32] = self._numbers[stacks]
        is_new = numbers == _NEW
        if is_new.any():
            for stack in np.unique(stacks[is_new]).tolist():
                self._number(stack, spelled)
            numbers = self._numbers[stacks]
        return numbers

    def _number(self, stack: int, spelled: dict[int, tuple[int, ...]]) -> int:
        if stack >= len(self._numbers):
            self._renumber(np.array([stack], dtype=np.uint32), spelled)
        if self._numbers[stack] == _NEW:
            frames = tuple(
                self._frames.setdefault(frame, len(self._frames)) for frame in self._spell(stack)
            )
            if frames not in self._stacks:
                self._stacks[frames] = len(self._stacks) + 1
                spelled[self._stacks[frames]] = frames
            self._numbers[stack] = self._stacks[frames]
        return int(self._numbers[stack])

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class _WholeWrites:
    """A new file that collects Arrow's small writes until `send` writes the whole batch.

    So a killed process hardly ever leaves half a batch, and a forked child inherits no unwritten
    data.
    """

    closed = False

    def __init__(self, path: Path) -> None:
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise exists_already(path) from None
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror}") from None
        self._waiting = bytearray()

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self._waiting += view
        return view.nbytes

    def flush(self) -> None:
        """Does nothing; Arrow calls it after each part of a batch."""

    def send(self) -> int:
        """Writes all bytes that were collected since the last call. Returns how many."""
        size = len(self._waiting)
        while self._waiting:
            written = os.write(self._descriptor, self._waiting)
            del self._waiting[:written]
        return size

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            os.close(self._descriptor)
