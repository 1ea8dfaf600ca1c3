"""The counters of a process, in a small file that others read while it is written.

The file has a fixed layout and size. A sequence number guards it, as in a sequence lock: it is odd
while the record is written and another afterwards, so a reader that sees the same even number
before and after has a whole record, and no reader can hold a writer up. A checksum over number and
record says so once more, for processors that reorder, and tells foreign files apart.

Reading and writing are plain calls on the file, which is opened for each: whoever touches a mapping
of a file that was cut short is killed, and whoever keeps a file open may write to another one after
the program has closed everything. A user's program must suffer neither.
"""

from __future__ import annotations

import os
import stat
import struct
import time
import zlib
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

from plimsoll.base.errors import InputError
from plimsoll.base.process_place import ProcessPlace
from plimsoll.base.telemetry.folder import counters_path, folders, published, remove
from plimsoll.base.telemetry.identity import pid_namespace, start_ticks

if TYPE_CHECKING:
    from pathlib import Path

_MAGIC = b"plimsoll"
_VERSION = 2
MAX_DEVICES = 64

_HEAD = struct.Struct("<8sII")  # magic, version, size of the file
_SEQUENCE = struct.Struct("<Q")
_GUARD = struct.Struct("<II")  # checksum and size of the record
_SEQUENCE_AT = _HEAD.size
_GUARD_AT = _SEQUENCE_AT + _SEQUENCE.size
_RECORD_AT = _GUARD_AT + _GUARD.size
_PROCESS = struct.Struct("<8q128s16s")
_PLACE = struct.Struct("<3q64s128s")
_DEVICE = struct.Struct("<2q64s48s14q")
_HEADER_BYTES = _PROCESS.size + _PLACE.size  # of a record, before its devices
FILE_BYTES = _RECORD_AT + _HEADER_BYTES + MAX_DEVICES * _DEVICE.size
_HEAD_BYTES = _HEAD.pack(_MAGIC, _VERSION, FILE_BYTES)

_UNKNOWN = -1
_READ_TRIES = 200
_BETWEEN_TRIES_SECONDS = 0.0005


@dataclass(frozen=True)
class DeviceCounters:
    """What one process holds of one GPU; None is unknown.

    Attributes:
        index: The GPU, as this process counts.
        name: What `torch.cuda.get_device_name` says.
        uuid: The GPU's, as CUDA writes it; "" for a simulated one.
        is_simulated: It is this process's own, and simulated.
        total_bytes: The GPU's dedicated memory.
        used_bytes: What of it is in use by anybody; only simulated GPUs say so here.
        context_bytes: What the driver charges the process beyond what the allocator reserved.
        allocated_bytes: In live blocks.
        active_bytes: These, and freed ones that another stream might still use.
        reserved_bytes: Taken from the driver, in both tiers.
        fragments_bytes: Free, in segments that are partly in use; of the elastic allocator, in
            pieces that are, and None where there are thousands of free blocks.
        shared_bytes: What of `reserved_bytes` is in the host's memory.
        shared_allocated_bytes: What of `allocated_bytes` is.
        peak_allocated_bytes: The most since the last reset.
        peak_reserved_bytes: The most reserved since the last reset.
        num_alloc_retries: How often all that was cached was given back for a request.
        num_ooms: Requests that failed.
        num_spills: Requests that got shared memory.
    """

    index: int
    is_simulated: bool
    name: str
    uuid: str
    total_bytes: int | None
    used_bytes: int | None
    context_bytes: int | None
    allocated_bytes: int
    active_bytes: int
    reserved_bytes: int
    fragments_bytes: int | None
    shared_bytes: int
    shared_allocated_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    num_alloc_retries: int
    num_ooms: int
    num_spills: int

    @property
    def cached_bytes(self) -> int:
        """Free and kept for later requests; with the fragments where those are not known."""
        return max(self.reserved_bytes - self.active_bytes - (self.fragments_bytes or 0), 0)

    @property
    def pending_bytes(self) -> int:
        """Freed, but another stream might still use it."""
        return max(self.active_bytes - self.allocated_bytes, 0)

    @property
    def dedicated_bytes(self) -> int:
        """What of `reserved_bytes` is on the card."""
        return max(self.reserved_bytes - self.shared_bytes, 0)


@dataclass(frozen=True)
class ProcessCounters:
    """What one process says of itself; None is unknown.

    Attributes:
        pid: Its number.
        start_ticks: When it began, see `identity.start_ticks`.
        namespace: Which numbers its number is one of, see `identity.pid_namespace`.
        heartbeat_ns: When this was read; nothing in it is older. By the machine's monotonic clock.
        interval_ns: When the next is due, after that.
        pinned_bytes: Page-locked memory of the host that its allocator holds.
        shared_total_bytes: How much of the host's memory GPUs may use.
        program: The script and its arguments.
        allocator: "elastic", "native", "uncached" or "torch".
        devices: The GPUs that it uses.
        place: Its place in its job.
    """

    SILENT_INTERVALS: ClassVar[int] = 8

    pid: int
    start_ticks: int
    namespace: int
    heartbeat_ns: int
    interval_ns: int
    pinned_bytes: int | None
    shared_total_bytes: int | None
    program: str
    allocator: str
    devices: tuple[DeviceCounters, ...] = field(default=())
    place: ProcessPlace = field(default=ProcessPlace(None, None, None, None))

    def is_running(self) -> bool:
        """Whether the process that wrote this is still there."""
        return start_ticks(self.pid) == self.start_ticks

    def silent_seconds(self) -> float | None:
        """For how long nothing was written, if that is longer than it should be."""
        silent = time.monotonic_ns() - self.heartbeat_ns
        return silent * 1e-9 if silent > self.SILENT_INTERVALS * self.interval_ns else None


class CountersFile:
    """The file of this process, for its one writer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sequence = 0
        path.unlink(missing_ok=True)  # of a process that had our number

    def write(self, counters: ProcessCounters) -> None:
        """Replace the record; the file is whole then, whatever has happened to it.

        Raises:
            OSError: If it cannot be written.
        """
        record = _encode(counters)
        self._sequence += 2
        guard = _GUARD.pack(_checksum(self._sequence, record), len(record))
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.ftruncate(file, FILE_BYTES)
            os.pwrite(file, _HEAD_BYTES + _SEQUENCE.pack(self._sequence - 1), 0)
            os.pwrite(file, guard + record, _GUARD_AT)
            os.pwrite(file, _SEQUENCE.pack(self._sequence), _SEQUENCE_AT)
        finally:
            os.close(file)


def read_counters(path: Path) -> ProcessCounters:
    """What a process has published.

    Raises:
        InputError: If the file is none of ours, is cut short, or is of another version; or if its
            writer died while it wrote.
        OSError: If it cannot be read.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        _check(path, file)
        for _ in range(_READ_TRIES):
            record = _read_once(file)
            if record is not None:
                return _decode(path, record)
            time.sleep(_BETWEEN_TRIES_SECONDS)
    finally:
        os.close(file)
    raise InputError(f"{path}: holds no whole record")


def _check(path: Path, file: int) -> None:
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        raise InputError(f"{path}: not a file of this user")
    head = os.pread(file, _HEAD.size, 0)
    if len(head) < _HEAD.size:
        raise InputError(f"{path}: cut short")
    magic, version, size = _HEAD.unpack(head)
    if magic != _MAGIC:
        raise InputError(f"{path}: not counters of plimsoll")
    if version != _VERSION:
        raise InputError(f"{path}: of another version of plimsoll (layout {version})")
    if size != FILE_BYTES or found.st_size != FILE_BYTES:
        raise InputError(f"{path}: cut short")


def _read_once(file: int) -> bytes | None:
    """A whole record, or None if it is being written or none was."""
    before = os.pread(file, _SEQUENCE.size, _SEQUENCE_AT)
    body = os.pread(file, FILE_BYTES - _GUARD_AT, _GUARD_AT)
    after = os.pread(file, _SEQUENCE.size, _SEQUENCE_AT)
    if before != after or len(before) < _SEQUENCE.size or len(body) < FILE_BYTES - _GUARD_AT:
        return None
    (sequence,) = _SEQUENCE.unpack(before)
    checksum, size = _GUARD.unpack_from(body)
    record = body[_GUARD.size : _GUARD.size + size]
    if sequence == 0 or sequence % 2 or checksum != _checksum(sequence, record):
        return None
    return record


def _checksum(sequence: int, record: bytes) -> int:
    return zlib.crc32(record, sequence & 0xFFFF_FFFF)


def _number(value: int | None) -> int:
    return _UNKNOWN if value is None else min(value, 2**63 - 1)


def _text(value: str, room: int) -> bytes:
    """As much as there is room for, in whole letters."""
    return value.encode(errors="replace")[:room].decode(errors="ignore").encode()


def _encode(counters: ProcessCounters) -> bytes:
    devices = counters.devices[:MAX_DEVICES]
    process = _PROCESS.pack(
        counters.pid,
        counters.start_ticks,
        counters.namespace,
        counters.heartbeat_ns,
        counters.interval_ns,
        _number(counters.pinned_bytes),
        _number(counters.shared_total_bytes),
        len(devices),
        _text(counters.program, 128),
        _text(counters.allocator, 16),
    )
    place = counters.place
    numbers = (place.rank, place.local_rank, place.world_size)
    where = _PLACE.pack(
        *map(_number, numbers), _text(place.host or "", 64), _text(place.job or "", 128)
    )
    return process + where + b"".join(map(_encode_device, devices))


def _encode_device(device: DeviceCounters) -> bytes:
    return _DEVICE.pack(
        device.index,
        device.is_simulated,
        _text(device.name, 64),
        _text(device.uuid, 48),
        *(_number(getattr(device, name)) for name in _DEVICE_NUMBERS),
    )


_DEVICE_NUMBERS = [each.name for each in fields(DeviceCounters)][4:]
_MAY_BE_UNKNOWN = {"total_bytes", "used_bytes", "context_bytes", "fragments_bytes"}


def _decode(path: Path, record: bytes) -> ProcessCounters:
    """Whatever the bytes are, a record of plausible values or an error."""
    if len(record) < _HEADER_BYTES:
        raise InputError(f"{path}: holds no whole record")
    *numbers, pinned, shared_total, count, program, allocator = _PROCESS.unpack_from(record)
    pid, started, namespace, heartbeat, interval = numbers
    if not 0 <= count <= MAX_DEVICES or len(record) != _HEADER_BYTES + count * _DEVICE.size:
        raise InputError(f"{path}: holds no whole record")
    if min(numbers) < 0:
        raise InputError(f"{path}: a number is below zero")
    return ProcessCounters(
        pid,
        started,
        namespace,
        heartbeat,
        interval,
        _known(path, pinned, may_be_unknown=True),
        _known(path, shared_total, may_be_unknown=True),
        _decode_text(program),
        _decode_text(allocator),
        tuple(
            _decode_device(path, fields_) for fields_ in _DEVICE.iter_unpack(record[_HEADER_BYTES:])
        ),
        _decode_place(path, _PLACE.unpack_from(record, _PROCESS.size)),
    )


def _decode_place(path: Path, values: tuple[Any, ...]) -> ProcessPlace:
    *numbers, host, job = values
    rank, local_rank, world_size = (_known(path, each, may_be_unknown=True) for each in numbers)
    try:
        return ProcessPlace.from_dict(
            {
                "rank": rank,
                "local_rank": local_rank,
                "world_size": world_size,
                "host": _decode_text(host) or None,
                "job": _decode_text(job) or None,
            }
        )
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None


def _decode_device(path: Path, values: tuple[Any, ...]) -> DeviceCounters:
    index, is_simulated, name, uuid, *numbers = values
    if index < 0:
        raise InputError(f"{path}: a number is below zero")
    known = [
        _known(path, number, may_be_unknown=name in _MAY_BE_UNKNOWN)
        for name, number in zip(_DEVICE_NUMBERS, numbers, strict=True)
    ]
    return DeviceCounters(
        index,
        bool(is_simulated),
        _decode_text(name),
        _decode_text(uuid),
        *known,  # type: ignore[arg-type]  # None only where it may be
    )


def _known(path: Path, number: int, *, may_be_unknown: bool) -> int | None:
    if number == _UNKNOWN and may_be_unknown:
        return None
    if number < 0:
        raise InputError(f"{path}: a number is below zero")
    return number


def _decode_text(text: bytes) -> str:
    return text.rstrip(b"\0").decode(errors="replace")


def read_processes(*, only: Path | None = None) -> list[ProcessCounters]:
    """What all of this user's processes have published, by number.

    What ended processes left behind is removed; what cannot be read is passed over, and so is what
    processes of other containers have published.

    Args:
        only: Look in this folder instead of all.
    """
    here = pid_namespace()
    found = {}
    for folder in folders() if only is None else [only]:
        for pid in published(folder):
            try:
                counters = read_counters(counters_path(folder, pid))
            except (InputError, OSError):
                if start_ticks(pid) is None:
                    remove(folder, pid)
                continue
            if (counters.pid, counters.namespace) != (pid, here):
                continue  # not what its name says
            if counters.is_running():
                found[pid] = counters
            else:
                remove(folder, pid)
    return [found[pid] for pid in sorted(found)]
