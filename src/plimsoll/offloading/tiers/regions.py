"""Regions: named groups of allocations, to place in a tier or to move off the card and back."""

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
    """The memory of a region on one GPU.

    `plimsoll.region_uses` returns one for each GPU; see docs/tiers.md.

    Attributes:
        allocated_bytes: Bytes in live blocks.
        reserved_bytes: Bytes reserved from the driver, in dedicated and shared memory together.
        shared_reserved_bytes: The part of the reserved bytes in shared memory.
        paused_bytes: Bytes that are off the card until `resume`.
    """

    allocated_bytes: int
    reserved_bytes: int
    shared_reserved_bytes: int
    paused_bytes: int


@dataclass(frozen=True)
class _How:
    """The options with which a region was paused."""

    backup: Backup = "host"
    directory: str | PathLike[str] | None = None


_regions: dict[str, int] = {}  # by name: the region's number
_paused: dict[str, _How] = {}
_lock = threading.RLock()
_entered = threading.local()


class region:  # noqa: N801
    """Names the GPU memory that a block of code allocates, and chooses its tier.

    Memory that this thread allocates inside the `with` block comes from the region, on any GPU. A
    name always means the same region. In nested regions the innermost one applies. A block of
    memory never belongs to two regions. So pausing the outer region does not affect the inner one.
    Memory that a CUDA graph allocates during capture belongs to the graph. Autograd computes
    gradients in its own threads, to which no region applies.

    >>> with plimsoll.region("kv-cache"):
    ...     cache = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")  # doctest: +SKIP

    Args:
        name: The region's name. With "" the memory belongs to no region, and only the tier is
            chosen.
        prefer: "shared": the code gets host memory, which the GPU reaches over the bus. When shared
            memory is used up, the code gets dedicated memory. This suits data that is used once a
            step, such as an optimizer's state. "dedicated": the code gets the card's own memory.
            `set_tiers` decides what happens when the card's memory is used up.

    Raises:
        InputError: If the preference is unknown. Also when the `with` block is entered, if
            plimsoll's elastic allocator is not installed.
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
    """Returns a region's memory on each GPU where it has any.

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
    """Returns the names of all regions that the program has named so far."""
    return sorted(_regions)


def graph_pool(name: str) -> tuple[int, int]:
    """Returns a region's memory pool for CUDA graphs; `pause` then also moves the graphs' memory.

    While a graph that uses the pool exists, `resume` restores all of the region's memory, including
    free memory, because the graph holds its addresses.

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
    """Moves the regions' content off the card until `resume`, and frees their memory on the card.

    The regions' tensors remain and keep their addresses, and CUDA graphs that use them remain too.
    Until `resume`, a kernel that reads or writes the tensors makes an illegal memory access.
    Waits for all streams of the GPUs. Either all regions are paused on all GPUs where they have
    memory, or none is.

    >>> plimsoll.pause("kv-cache")  # the bytes that are free now  # doctest: +SKIP
    21474836480
    >>> plimsoll.pause("weights", "optimizer")  # doctest: +SKIP
    64424509440

    Args:
        names: The regions.
        backup: "host": plimsoll keeps the content in page-locked memory, and reuses this memory for
            the next pause. "disk": plimsoll keeps the content in unnamed files, which are gone when
            the process ends. "drop": the content is not kept, and is undefined after `resume`.
        directory: The directory of the files of "disk"; by default the system's directory for
            temporary files.

    Returns:
        Returns the bytes of dedicated memory that are now free.

    Raises:
        InputError: If a region does not exist, is named twice, is paused already, has no memory, or
            has memory shared with other processes. Also if a graph is being captured, or a file
            cannot be written. The state is unchanged then.
        OutOfMemoryError: If the host has no memory for the content. The state is unchanged then.
        DriverError: If the driver fails. The state is unchanged then, but with `backup="drop"` the
            regions that were paused before the failure have lost their content. If the driver also
            fails to undo a pause, that region stays paused. Its content is safe, except with
            `backup="drop"`.
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
        for name, engine in _each(found):  # check all regions before any content is dropped
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
    """Moves paused regions back to the card: the same content at the same addresses.

    Either all regions are resumed on all GPUs, or none is: if a region does not fit on a card, the
    regions that this call has already resumed are paused again.

    >>> plimsoll.resume("kv-cache")  # doctest: +SKIP
    21474836480

    Returns:
        Returns the bytes of dedicated memory that the regions take.

    Raises:
        InputError: If a region does not exist, is named twice or is not paused, a graph is being
            captured, or a file cannot be read.
        OutOfMemoryError: If a card has no room. All regions are still paused, without loss.
        DriverError: If the driver fails. All regions are still paused, without loss; if the driver
            also fails to undo the resumption, one region stays on the card.
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
    """Returns whether part of a region is off the card.

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
        with _new_file(how.directory) as file:  # the engine keeps the file open
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
