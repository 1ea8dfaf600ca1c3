"""The counters of a process, in a small file that can be read while it is written.

The file has a fixed layout and size. A sequence number guards it, as in a sequence lock: the number
is odd during a write, and every write ends with a new even number. A reader that sees the same even
number before and after its read has a whole record. No reader can block the writer. A checksum over
the sequence number and the record has two purposes: it confirms that the record is whole on
processors that reorder memory accesses, and it detects files that are not counters files.

Each read or write opens the file and uses plain system calls, for two reasons. The kernel kills a
process that touches a memory mapping of a truncated file. And after a program has closed all its
descriptors, a descriptor that plimsoll kept open may belong to another file.
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

_HEAD = struct.Struct("<8sII")  # magic bytes, version, size of the file
_SEQUENCE = struct.Struct("<Q")
_GUARD = struct.Struct("<II")  # the checksum, then the record's size
_SEQUENCE_AT = _HEAD.size
_GUARD_AT = _SEQUENCE_AT + _SEQUENCE.size
_RECORD_AT = _GUARD_AT + _GUARD.size
_PROCESS = struct.Struct("<8q128s16s")
_PLACE = struct.Struct("<3q64s128s")
_DEVICE = struct.Struct("<2q64s48s14q")
_HEADER_BYTES = _PROCESS.size + _PLACE.size  # in a record, the devices follow these bytes
FILE_BYTES = _RECORD_AT + _HEADER_BYTES + MAX_DEVICES * _DEVICE.size
_HEAD_BYTES = _HEAD.pack(_MAGIC, _VERSION, FILE_BYTES)

_UNKNOWN = -1
_READ_TRIES = 200
_BETWEEN_TRIES_SECONDS = 0.0005


@dataclass(frozen=True)
class DeviceCounters:
    """One process's counters of one GPU; None means unknown.

    Attributes:
        index: The GPU's number in this process.
        name: The name from `torch.cuda.get_device_name`.
        uuid: The GPU's UUID as CUDA writes it; "" for a simulated one.
        is_simulated: Whether the GPU is simulated; then it exists in this process only.
        total_bytes: The GPU's dedicated memory.
        used_bytes: The bytes in use by all processes; None for a real GPU, whose driver reports
            them.
        context_bytes: The bytes that the driver charges to the process beyond what the allocator
            reserved.
        allocated_bytes: Bytes in live blocks.
        active_bytes: Bytes in live blocks, and in freed blocks that another stream might still use.
        reserved_bytes: Bytes reserved from the driver, on the card and in host memory.
        fragments_bytes: Free bytes in segments that are partly in use. For the elastic allocator,
            which maps memory in pieces: free bytes in pieces that are partly in use. None if this
            allocator has too many free blocks (thousands) to add up.
        shared_bytes: The part of `reserved_bytes` in host memory.
        shared_allocated_bytes: The part of `allocated_bytes` in host memory.
        peak_allocated_bytes: The most allocated since the last reset.
        peak_reserved_bytes: The most reserved since the last reset.
        num_alloc_retries: How often the allocator returned its whole cache to the driver because a
            request had failed.
        num_ooms: Requests that failed.
        num_spills: Requests that got host memory because the card was full.
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
        """Free bytes that the allocator keeps for later requests, without the fragments.

        If the fragments' size is unknown (`fragments_bytes` is None), the value includes them.
        """
        return max(self.reserved_bytes - self.active_bytes - (self.fragments_bytes or 0), 0)

    @property
    def pending_bytes(self) -> int:
        """Freed bytes that another stream might still use."""
        return max(self.active_bytes - self.allocated_bytes, 0)

    @property
    def dedicated_bytes(self) -> int:
        """The part of `reserved_bytes` on the card."""
        return max(self.reserved_bytes - self.shared_bytes, 0)


@dataclass(frozen=True)
class ProcessCounters:
    """The published counters of one process; None means unknown.

    Attributes:
        pid: The process id.
        start_ticks: The time when the process started, see `identity.start_ticks`.
        namespace: The PID namespace of `pid`, see `identity.pid_namespace`.
        heartbeat_ns: A time just before the counters were read, on the machine's monotonic clock.
        interval_ns: The time until the next write is due.
        pinned_bytes: Page-locked host memory that the process's allocator holds.
        shared_total_bytes: The host memory that GPUs may use.
        program: The script and its arguments.
        allocator: "torch" for PyTorch's own allocator; "elastic", "native" or "uncached" for one of
            plimsoll's.
        devices: The counters of each GPU that the process uses.
        place: The process's host, and its rank in its job.
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
        """Returns whether the process that wrote these counters still runs."""
        return start_ticks(self.pid) == self.start_ticks

    def silent_seconds(self) -> float | None:
        """Returns the seconds since the last write if the writer is silent; else None.

        A writer is silent if it has not written for `SILENT_INTERVALS` times its interval.
        """
        silent = time.monotonic_ns() - self.heartbeat_ns
        return silent * 1e-9 if silent > self.SILENT_INTERVALS * self.interval_ns else None


class CountersFile:
    """The counters file of this process. No other process writes to it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sequence = 0
        path.unlink(missing_ok=True)  # from an earlier process that had the same process id

    def write(self, counters: ProcessCounters) -> None:
        """Writes the whole file with new counters; this repairs a damaged file.

        Raises:
            OSError: If the file cannot be written.
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
    """Reads the counters that a process has published.

    Raises:
        InputError: If the file is not a counters file, is truncated, or has another version; or if
            its writer died during a write.
        OSError: If the file cannot be read.
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
    """Returns a whole record; None if the writer is writing or has not written yet."""
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
    """Encodes text for a field of fixed size; cuts it after the last whole character that fits."""
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
    """Decodes a record, which may hold any bytes; refuses values that cannot be true."""
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
    """Returns the counters of all of this user's processes, in the order of process ids.

    Files of ended processes are deleted. Files that cannot be read, and those from other
    containers, are skipped.

    Args:
        only: The only folder to read; by default all of `folders` are read.
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
                continue  # the file's content does not match its name
            if counters.is_running():
                found[pid] = counters
            else:
                remove(folder, pid)
    return [found[pid] for pid in sorted(found)]
