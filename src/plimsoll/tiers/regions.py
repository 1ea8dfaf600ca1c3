"""Regions: memory with a name, that is placed, taken off the card and brought back as a whole."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from plimsoll import _core
from plimsoll.errors import InputError, OutOfMemoryError
from plimsoll.tiers.engines import check_elastic, engines_in_use
from plimsoll.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

TierName = Literal["dedicated", "shared"]
Backup = Literal["host", "disk", "drop"]

_NO_REGION = 0


@dataclass(frozen=True)
class RegionUse:
    """What a region has on one GPU.

    Attributes:
        allocated_bytes: In live blocks.
        reserved_bytes: Taken from the driver, of both tiers.
        shared_reserved_bytes: Of that, in shared memory.
        paused_bytes: Off the card until the region is resumed.
    """

    allocated_bytes: int
    reserved_bytes: int
    shared_reserved_bytes: int
    paused_bytes: int


@dataclass
class _Region:
    number: int
    files: dict[int, Path] = field(default_factory=dict)  # by GPU, of what is paused to disk


_regions: dict[str, _Region] = {}
_lock = threading.RLock()
_entered = threading.local()


class region:  # noqa: N801
    """Give what a block of code allocates on GPUs a name, and a place.

    Memory that this thread asks for inside the block comes from the region's own memory, on any
    GPU. A region is the same one each time its name is used. Of nested regions the inner one
    counts; each block of memory belongs to one region, so regions never overlap, and to pause one
    leaves those alone that were entered inside it. Memory that a CUDA graph allocates while it is
    captured belongs to the graph. Autograd computes gradients in threads of its own, to which no
    region of yours applies.

    >>> with plimsoll.region("kv-cache"):
    ...     cache = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")  # doctest: +SKIP

    Args:
        name: Its name; "" is no region, for a preference alone.
        prefer: "shared" for memory of the host, which the GPU reaches over the bus; it serves
            what is read and written once a step, such as an optimizer's state. The other tier is
            used when the preferred one is spent.

    Raises:
        InputError: If the preference is none, or, at entry, plimsoll's elastic allocator is not
            installed.
    """

    def __init__(self, name: str, *, prefer: TierName = "dedicated") -> None:
        if prefer not in get_args(TierName):
            raise InputError(f"unknown tier {prefer!r}; there are dedicated and shared")
        self._number = _number_of(name)
        self._prefers_shared = prefer == "shared"

    def __enter__(self) -> None:
        check_elastic()
        stack = _placements()
        stack.append((self._number, self._prefers_shared))
        _core.set_placement(*stack[-1])

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        stack = _placements()
        stack.pop()
        _core.set_placement(*(stack[-1] if stack else (None,)))


def _placements() -> list[tuple[int, bool]]:
    if not hasattr(_entered, "stack"):
        _entered.stack = []
    stack: list[tuple[int, bool]] = _entered.stack
    return stack


def _number_of(name: str) -> int:
    if not name:
        return _NO_REGION
    with _lock:
        return _regions.setdefault(name, _Region(len(_regions) + 1)).number


def _known(name: str) -> _Region:
    if name in _regions:
        return _regions[name]
    known = ", ".join(sorted(_regions)) or "none"
    raise InputError(f"there is no region {name!r}; known: {known}")


def region_uses(name: str) -> dict[int, RegionUse]:
    """What a region has on each GPU where it has any.

    Raises:
        InputError: If there is no such region, or plimsoll's allocator is not installed.
    """
    number = _known(name).number
    check_elastic()
    uses = {index: engine.region_use(number) for index, engine in engines_in_use().items()}
    return {index: RegionUse(**use) for index, use in uses.items() if use}


def region_names() -> list[str]:
    """The names of all regions so far."""
    return sorted(_regions)


def pause(name: str, *, backup: Backup = "host", directory: str | Path | None = None) -> int:
    """Give the card's memory of a region back until `resume`.

    The region's tensors stay, and keep their addresses, as do CUDA graphs that use them; nobody
    may touch their content meanwhile, which is an illegal access. Waits for the GPUs. All GPUs
    where the region has memory are paused, or none.

    Args:
        name: The region.
        backup: Where the content goes: "host", to page-locked memory, which is kept for the next
            time; "disk", through it to a file; "drop", nowhere: after `resume` it is undefined.
        directory: For the files; by default the system's directory for temporary files.

    Returns:
        The bytes of dedicated memory that are free now.

    Raises:
        InputError: If there is no such region, it is paused already or has no memory, or a file
            cannot be written.
        OutOfMemoryError: If the host has no memory for the content. The region is as it was.
        DriverError: If the driver fails. The region is as it was, or is paused, with its content
            safe, where the driver refuses even that.
    """
    if backup not in get_args(Backup):
        raise InputError(f"unknown backup {backup!r}; there are host, disk and drop")
    found = _known(name)
    check_elastic()
    with _lock:
        engines = {
            index: engine
            for index, engine in engines_in_use().items()
            if engine.region_use(found.number)
        }
        if not engines:
            raise InputError(f"the region {name!r} has no memory on any GPU")
        if any(engine.is_paused(found.number) for engine in engines.values()):
            raise InputError(f"the region {name!r} is paused already")
        freed = 0
        with contextlib.ExitStack() as undo:
            for index, engine in engines.items():
                freed += _pause_one(engine, found.number, keep=backup != "drop")
                undo.callback(engine.resume, found.number)
                if backup == "disk":
                    path = _new_file(directory)
                    undo.callback(path.unlink, missing_ok=True)
                    undo.callback(found.files.pop, index, None)
                    found.files[index] = path
                    _save(engine, found.number, path)
            undo.pop_all()
        return freed


def resume(name: str) -> int:
    """Bring a paused region back to the card: the same content at the same addresses.

    Returns:
        The bytes of dedicated memory that it takes.

    Raises:
        InputError: If there is no such region, or it is not paused.
        OutOfMemoryError: If a card has no room. The region is still paused, and loses nothing.
        DriverError: If the driver fails; likewise.
    """
    found = _known(name)
    check_elastic()
    with _lock:
        paused = {
            index: engine
            for index, engine in engines_in_use().items()
            if engine.is_paused(found.number)
        }
        if not paused:
            raise InputError(f"the region {name!r} is not paused")
        taken = 0
        for index, engine in paused.items():
            path = found.files.get(index)
            with _as_ours(engine, f"resume the region {name!r}"):
                if path is not None:
                    _load(engine, found.number, path)
                taken += engine.resume(found.number)
            if path is not None:
                del found.files[index]
                path.unlink()
        return taken


def is_paused(name: str) -> bool:
    """Whether any of a region's memory is off the card.

    Raises:
        InputError: If there is no such region.
    """
    number = _known(name).number
    check_elastic()
    return any(engine.is_paused(number) for engine in engines_in_use().values())


def _pause_one(engine: _core.LiveEngine, number: int, *, keep: bool) -> int:
    with _as_ours(engine, "pause a region"):
        return engine.pause(number, keep)


@contextlib.contextmanager
def _as_ours(engine: _core.LiveEngine, what: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise InputError(str(error)) from None
    except (_core.OutOfMemory, _core.HostOutOfMemory) as error:
        free, total = engine.memory_info()
        statistics = engine.statistics()
        raise OutOfMemoryError(
            f"no memory to {what}: {format_size(free)} of the card's {format_size(total)} are "
            f"free, and of the host's memory {format_size(engine.shared_info()[0])}. {error}",
            requested_bytes=0,
            free_bytes=free,
            total_bytes=total,
            limit_bytes=engine.limit,
            allocated_bytes=statistics["allocated_bytes.all.current"],
            reserved_bytes=statistics["reserved_bytes.all.current"],
        ) from None


def _new_file(directory: str | Path | None) -> Path:
    try:
        descriptor, path = tempfile.mkstemp(".region", "plimsoll-", directory)
    except OSError as error:
        raise InputError(f"cannot write into {directory}: {error.strerror}") from None
    os.close(descriptor)
    return Path(path)


def _save(engine: _core.LiveEngine, number: int, path: Path) -> None:
    try:
        engine.save_backup(number, str(path))
    except RuntimeError as error:
        raise InputError(f"{error}: is the disk full?") from None


def _load(engine: _core.LiveEngine, number: int, path: Path) -> None:
    try:
        engine.load_backup(number, str(path))
    except RuntimeError as error:
        raise InputError(str(error)) from None
