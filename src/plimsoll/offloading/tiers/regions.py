"""Regions: memory with a name, that is placed, taken off the card and brought back as a whole."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from plimsoll import _core
from plimsoll.base.errors import InputError, OutOfMemoryError
from plimsoll.base.units import format_size
from plimsoll.engine.current import check_elastic, engines_in_use

if TYPE_CHECKING:
    from collections.abc import Iterator
    from os import PathLike

    from plimsoll.engine.protocol import Engine

TierName = Literal["dedicated", "shared"]
Backup = Literal["host", "disk", "drop"]

_NO_REGION = 0


@dataclass(frozen=True)
class RegionUse:
    """What a region has on one GPU.

    `plimsoll.region_uses` gives them; see docs/tiers.md.

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


@dataclass(frozen=True)
class _How:
    """How a region was paused."""

    backup: Backup = "host"
    directory: str | PathLike[str] | None = None


_regions: dict[str, int] = {}  # their numbers
_paused: dict[str, _How] = {}
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
        self._name = name
        self._prefers_shared = prefer == "shared"

    def __enter__(self) -> None:
        check_elastic()
        stack = _placements()
        stack.append((_number_of(self._name), self._prefers_shared))
        _core.set_placement(*stack[-1])

    def __exit__(self, *_: object) -> None:
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
        return _regions.setdefault(name, len(_regions) + 1)


def _known(name: str) -> int:
    if name in _regions:
        return _regions[name]
    known = ", ".join(sorted(_regions)) or "none"
    raise InputError(f"there is no region {name!r}; known: {known}")


def _named(names: tuple[str, ...]) -> list[tuple[str, int]]:
    if not names:
        known = ", ".join(sorted(_regions)) or "none"
        raise InputError(f"name the regions that are meant; known: {known}")
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"the region {name!r} is named twice")
    return [(name, _known(name)) for name in names]


def _engines_with(number: int) -> list[Engine]:
    check_elastic()
    return [engine for engine in engines_in_use().values() if engine.region_use(number)]


def _paused_engines(number: int) -> list[Engine]:
    check_elastic()
    return [engine for engine in engines_in_use().values() if engine.is_paused(number)]


def _each(found: list[tuple[str, list[Engine]]]) -> Iterator[tuple[str, Engine]]:
    return ((name, engine) for name, engines in found for engine in engines)


def region_uses(name: str) -> dict[int, RegionUse]:
    """What a region has on each GPU where it has any.

    >>> plimsoll.region_uses("kv-cache")[0].reserved_bytes  # doctest: +SKIP
    21474836480

    Raises:
        InputError: If there is no such region, or plimsoll's allocator is not installed.
    """
    number = _known(name)
    check_elastic()
    uses = {index: engine.region_use(number) for index, engine in engines_in_use().items()}
    return {index: RegionUse(**use) for index, use in uses.items() if use}


def region_names() -> list[str]:
    """The names of all regions so far."""
    return sorted(_regions)


def graph_pool(name: str) -> tuple[int, int]:
    """A region as a pool that CUDA graphs are captured into, so that it is paused with them.

    While a graph that uses the pool lives, all of the region's memory comes back with `resume`,
    what is free included, for the graph remembers its addresses.

    >>> pool = plimsoll.graph_pool("graphs")  # doctest: +SKIP
    >>> with torch.cuda.graph(graph, pool=pool):
    ...     step()  # doctest: +SKIP

    Raises:
        InputError: If the name is empty, or plimsoll's elastic allocator is not installed.
    """
    check_elastic()
    if not name:
        raise InputError("a region that graphs are captured into needs a name")
    return _core.region_pool(_number_of(name))


def pause(
    *names: str, backup: Backup = "host", directory: str | PathLike[str] | None = None
) -> int:
    """Give the card's memory of regions back until `resume`.

    The regions' tensors stay, and keep their addresses, as do CUDA graphs that use them; nobody
    may touch their content meanwhile, which is an illegal access. Waits for the GPUs, on all
    streams. All regions are paused on all GPUs where they have memory, or none is.

    >>> plimsoll.pause("kv-cache")  # the bytes that are free now  # doctest: +SKIP
    21474836480
    >>> plimsoll.pause("weights", "optimizer")  # doctest: +SKIP
    64424509440

    Args:
        names: The regions.
        backup: Where the content goes: "host", to page-locked memory, which is kept for the next
            time; "disk", to files without a name, which end with the process, through a few
            page-locked buffers; "drop", nowhere: after `resume` it is undefined.
        directory: For the files; by default the system's directory for temporary files.

    Returns:
        The bytes of dedicated memory that are free now.

    Raises:
        InputError: If there is no such region, it is named twice or paused already, has no memory
            or memory that other processes were sent, a graph is being captured, or a file cannot
            be written. All is as it was.
        OutOfMemoryError: If the host has no memory for the content. All is as it was.
        DriverError: If the driver fails. All is as it was, but that `backup="drop"` has given up
            the content of regions before the one that fails; where the driver refuses even that,
            the region is paused and its content is safe.
    """
    if backup not in get_args(Backup):
        raise InputError(f"unknown backup {backup!r}; there are host, disk and drop")
    with _lock:
        found = [(name, _engines_with(number)) for name, number in _named(names)]
        for name, engines in found:
            if not engines:
                raise InputError(f"the region {name!r} has no memory on any GPU")
            if any(engine.is_paused(_regions[name]) for engine in engines):
                raise InputError(f"the region {name!r} is paused already")
        for name, engine in _each(found):  # before any content is given up
            with _as_ours(engine, f"pause the region {name!r}"):
                engine.require_pausable(_regions[name])
        how = _How(backup, directory)
        freed = 0
        with contextlib.ExitStack() as undo:
            for name, engine in _each(found):
                freed += _pause_one(engine, name, how)
                undo.callback(_resume_one, engine, name)
            undo.pop_all()
        _paused.update(dict.fromkeys(names, how))
        return freed


def resume(*names: str) -> int:
    """Bring paused regions back to the card: the same content at the same addresses.

    All regions are resumed on all GPUs, or none is: where the last one finds no room, those before
    it are paused again, as they were.

    >>> plimsoll.resume("kv-cache")  # doctest: +SKIP
    21474836480

    Returns:
        The bytes of dedicated memory that they take.

    Raises:
        InputError: If there is no such region, it is named twice, it is not paused, a graph is
            being captured, or a file cannot be read.
        OutOfMemoryError: If a card has no room. All are still paused, and lose nothing.
        DriverError: If the driver fails. All are still paused, and lose nothing; where the driver
            refuses even that, one is back on the card.
    """
    with _lock:
        found = [(name, _paused_engines(number)) for name, number in _named(names)]
        for name, engines in found:
            if not engines:
                raise InputError(f"the region {name!r} is not paused")
        taken = 0
        with contextlib.ExitStack() as undo:
            for name, engine in _each(found):
                taken += _resume_one(engine, name)
                undo.callback(_pause_one, engine, name, _paused.get(name, _How()))
            undo.pop_all()
        for name in names:
            _paused.pop(name, None)
        return taken


def is_paused(name: str) -> bool:
    """Whether any of a region's memory is off the card.

    >>> plimsoll.is_paused("kv-cache")  # doctest: +SKIP
    False

    Raises:
        InputError: If there is no such region.
    """
    return bool(_paused_engines(_known(name)))


def _pause_one(engine: Engine, name: str, how: _How) -> int:
    number = _regions[name]
    with _as_ours(engine, f"pause the region {name!r}"):
        if how.backup != "disk":
            return engine.pause(number, keep=how.backup == "host")
        with _new_file(how.directory) as file:  # the engine keeps it open
            return engine.pause(number, keep=True, file=file.fileno())


def _resume_one(engine: Engine, name: str) -> int:
    with _as_ours(engine, f"resume the region {name!r}"):
        return engine.resume(_known(name))


@contextlib.contextmanager
def _as_ours(engine: Engine, what: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, _core.BackupError) as error:
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


def _new_file(directory: str | PathLike[str] | None) -> Any:
    try:
        return tempfile.TemporaryFile(dir=directory)
    except OSError as error:
        where = directory or tempfile.gettempdir()
        raise InputError(f"cannot write into {where}: {error.strerror}") from None
