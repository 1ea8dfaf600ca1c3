"""An allocator on a simulated GPU, with the interface of torch.cuda."""

from __future__ import annotations

import itertools
import pickle
import sys
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from plimsoll import _core
from plimsoll.base.errors import InputError, OutOfMemoryError
from plimsoll.base.files import NewFile
from plimsoll.base.units import format_size, parse_memory, parse_size
from plimsoll.engine.shared_use import SharedUse
from plimsoll.engine.snapshot import snapshot_dict
from plimsoll.engine.summary import summary_text, tiers_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from os import PathLike

    from plimsoll.engine.protocol import AllocatorName, SpillPolicyName
    from plimsoll.engine.simulator.machine import SimulatedGpu

_pool_numbers = itertools.count(1)
_NOT_EXPANDABLE = "expandable_segments:False"
_NO_EXPANDABLE_SEGMENTS = (
    "expandable_segments not supported on this platform: PyTorch on Windows ignores it, and so "
    "does the simulated driver wddm; in WSL PyTorch follows it"
)
_warned: dict[str | tuple[str, type[Warning], int], int] = {}


def check_allocator(name: str) -> None:
    """Raises an error if no allocator has this name.

    Raises:
        InputError: If the name is unknown; the message lists the known names.
    """
    known = _core.allocator_names()
    if name not in known:
        *others, last = known
        raise InputError(f"unknown allocator {name!r}; there are {', '.join(others)} and {last}")


class MemoryPool:
    """A private pool of an allocator, like torch.cuda.MemPool; made by `Allocator.make_pool`.

    See docs/engine.md.

    Attributes:
        id: The pool's id in snapshots.
        released: Whether the pool was released.
    """

    def __init__(self, allocator: Allocator) -> None:
        self.id = (0, next(_pool_numbers))
        self.released = False
        self._allocator = allocator

    def release(self) -> None:
        """Releases the pool: free memory returns to the driver now, other memory once it is freed.

        Raises:
            InputError: If the pool was released already.
        """
        if self.released:
            raise InputError("this private pool was released already")
        self._allocator.engine.release_pool(*self.id)
        self._allocator.engine.empty_cache(*self.id)
        self.released = True


class Allocator:
    """PyTorch's caching allocator, or one of plimsoll's, on one simulated GPU.

    It hands out addresses instead of tensors: `malloc` allocates what `torch.empty` would, and
    `free` does what deleting the tensor would. All other names are those of torch.cuda. Sizes may
    be strings such as "1GiB".

    >>> from plimsoll import Allocator, SimulatedGpu
    >>> allocator = Allocator(SimulatedGpu("24GiB"))
    >>> tensor = allocator.malloc("3MiB")
    >>> allocator.memory_allocated(), allocator.memory_reserved()
    (3145728, 20971520)
    >>> allocator.free(tensor)
    >>> allocator.memory_allocated(), allocator.memory_reserved()
    (0, 20971520)
    >>> allocator.empty_cache()
    >>> allocator.memory_reserved()
    0

    Args:
        gpu: The device.
        allocator: "native" follows PyTorch's rules. "elastic" is plimsoll's own, which moves free
            memory to where it is needed. "uncached" makes a driver call for each request.
        policy: With "strict", a request fails when dedicated memory, the card's own, is used up.
            With "spill", the request then gets shared memory, which is host memory that the GPU
            uses directly. The "elastic" allocator spills by itself; with "native" and "uncached"
            only a GPU's `wddm` driver can spill. By default the driver's kind decides: `wddm`
            spills, `linux` does not.
        shared_limit: The most shared memory that "elastic" reserves; by default all that the
            machine has.
        conf: The configuration, in the syntax of PYTORCH_CUDA_ALLOC_CONF; "elastic" uses only
            per_process_memory_fraction.
        version: The PyTorch version whose rules are followed, such as "2.11"; by default the newest
            known.
        wheel: The address of `plimsoll_wheel_api`, a C table with the functions of PyTorch's own
            allocator. "native" then calls PyTorch's code. If the address is 0, "native" is
            plimsoll's implementation of PyTorch's rules. Only one simulated machine in a process
            can use PyTorch's code.

    Raises:
        InputError: If the configuration or the version is unknown, or the allocator and the driver
            do not support the policy.
    """

    def __init__(
        self,
        gpu: SimulatedGpu,
        *,
        allocator: AllocatorName = "native",
        policy: SpillPolicyName | None = None,
        shared_limit: int | str | None = None,
        conf: str = "",
        version: str | None = None,
        wheel: int = 0,
    ) -> None:
        self.gpu = gpu
        self.name = allocator
        self.conf = conf
        device = next((i for i, other in enumerate(gpu.machine.gpus) if other is gpu), 0)
        self.device = device
        try:
            self.version = _core.plain_version(version or _core.NEWEST_VERSION)
            config = _core.AllocatorConfig.parse(conf, self.version)
            check_allocator(allocator)
            if self._ignores_expandable(config):
                self.conf = f"{conf},{_NOT_EXPANDABLE}"
                config = _core.AllocatorConfig.parse(self.conf, self.version)
            self.engine = _core.Engine(
                allocator, gpu._driver, self.conf, self.version, device, wheel
            )
        except ValueError as error:
            raise InputError(str(error)) from None
        self.config = config
        self._set_policy(policy)
        if shared_limit is not None:
            self.set_shared_limit(shared_limit)
        self._stacks: list[list[tuple[str, int, str]]] = [[]]
        self._stack_numbers: dict[tuple[tuple[str, int, str], ...], int] = {}
        self._record_stacks = False

    def _ignores_expandable(self, config: _core.AllocatorConfig) -> bool:
        """Returns whether PyTorch ignores that segments are to be expandable, and warns as it does.

        PyTorch's builds for Windows lack the driver calls for it (PYTORCH_C10_DRIVER_API_SUPPORTED
        in PyTorch's CUDAAllocatorConfig.h).
        """
        is_windows = self.name == "native" and self.gpu.machine.driver == "wddm"
        if not is_windows or not config.expandable_segments:
            return False
        warnings.warn_explicit(
            _NO_EXPANDABLE_SEGMENTS, UserWarning, "plimsoll", 1, registry=_warned
        )
        return True

    def _set_policy(self, policy: SpillPolicyName | None) -> None:
        by_driver = self.gpu.machine.driver == "wddm"
        if policy not in (None, "strict", "spill"):
            raise InputError(f"unknown policy {policy!r}; there are strict and spill")
        if policy == "strict" and by_driver:
            raise InputError("the wddm driver spills by itself; strict is for the linux driver")
        if policy == "spill" and not by_driver and self.name != "elastic":
            raise InputError(
                f"the {self.name} allocator cannot spill, only a driver can under it: wddm"
            )
        # The elastic allocator itself decides what spills, even if the driver is wddm.
        if self.name == "elastic":
            self.engine.spills = by_driver or policy == "spill"

    # --- requests --------------------------------------------------------------------------------

    def malloc(self, size: int | str, *, stream: int = 0) -> int:
        """Allocates memory for work on `stream` and returns its address.

        A request of 0 bytes takes no block and returns 0, like that of an empty tensor in PyTorch.

        Raises:
            OutOfMemoryError: If neither the cache nor the driver has enough memory. The allocator's
                state is then unchanged.
            InputError: If `size` is negative, or not a size.
        """
        if size == 0:
            return 0
        size_bytes = parse_size(size)
        self._note_stack()
        try:
            return self.engine.allocate(size_bytes, stream)
        except _core.OutOfMemory as error:
            raise OutOfMemoryError(
                str(error),
                requested_bytes=size_bytes,
                free_bytes=self.gpu.free_bytes,
                total_bytes=self.gpu.total_bytes,
                limit_bytes=self.engine.limit,
                allocated_bytes=self.memory_allocated(),
                reserved_bytes=self.memory_reserved(),
            ) from None

    def free(self, address: int) -> None:
        """Returns memory to the allocator. Address 0, that of 0 bytes, needs no return.

        Raises:
            InputError: If there is no allocation at this address.
        """
        if address == 0:
            return
        self._note_stack()
        self._known(self.engine.free, address)

    def record_stream(self, address: int, stream: int) -> None:
        """Notes that `stream` uses the memory: after `free`, reuse waits for that stream's work.

        Does nothing for address 0, that of 0 bytes.

        Raises:
            InputError: If there is no allocation at this address.
        """
        if address == 0:
            return
        self._known(self.engine.record_stream, address, stream)

    def block_size(self, address: int) -> int:
        """Returns the bytes that an allocation takes, after rounding.

        Raises:
            InputError: If there is no allocation at this address.
        """
        return int(self._known(self.engine.block_size, address))

    def empty_cache(self) -> None:
        """Waits for streams that still use freed memory, and returns free memory to the driver."""
        self._note_stack()
        self.engine.empty_cache()

    @staticmethod
    def _known(call: Any, address: int, *args: int) -> Any:
        if address <= 0:
            raise InputError(f"{address:#x} is not allocated")
        try:
            return call(address, *args)
        except _core.UnknownAddress as error:
            raise InputError(str(error)) from None

    def configure(self, settings: str) -> None:
        """Changes settings while the program runs, like torch.cuda.memory._set_allocator_settings.

        The "native" allocator follows the settings for later requests; the other allocators only
        check them. As in PyTorch, max_split_size_mb, roundup_power2_divisions and
        garbage_collection_threshold return to their defaults unless `settings` names them, and the
        limit of per_process_memory_fraction stays.

        Args:
            settings: In the syntax of PYTORCH_CUDA_ALLOC_CONF.

        Raises:
            InputError: If the settings are invalid; nothing changes then.
        """
        try:
            config = self.config.with_settings(settings, self.version)
            if self._ignores_expandable(config):
                settings = f"{settings},{_NOT_EXPANDABLE}"
                config = self.config.with_settings(settings, self.version)
            self.engine.configure(settings)
        except _core.ConfigError as error:
            raise InputError(str(error)) from None
        self.config = config
        self.conf = config.text

    # --- limits and pools ------------------------------------------------------------------------

    def set_per_process_memory_fraction(self, fraction: float) -> None:
        """Limits the reserved memory to a fraction of the device's memory; 1.0 means no limit.

        Raises:
            InputError: If `fraction` is not between 0 and 1.
        """
        if not 0 <= fraction <= 1:
            raise InputError(f"a fraction lies within 0 and 1, not {fraction}")
        self.engine.set_fraction(fraction)

    @property
    def limit_bytes(self) -> int | None:
        """The most memory that may be reserved; None for no limit."""
        return self.engine.limit

    @property
    def policy(self) -> SpillPolicyName:
        """Whether a request fails or gets shared memory when dedicated memory is used up."""
        return "spill" if self.engine.may_spill else "strict"

    def set_shared_limit(self, limit: int | str | None) -> None:
        """Limits the reserved shared memory to `limit`; None allows all that the machine has.

        Raises:
            InputError: If the allocator is not "elastic", or `limit` exceeds the machine's shared
                memory.
        """
        size = None if limit is None else parse_memory(limit)
        if self.name != "elastic":
            raise InputError("only the elastic allocator has a limit of its own")
        total = self.gpu.machine.shared_total_bytes
        if size is not None and size > total:
            raise InputError(
                f"{format_size(size)} of shared memory is more than the machine has: "
                f"{format_size(total)}, half of the host's memory"
            )
        self.engine.shared_limit = size

    @property
    def shared_limit_bytes(self) -> int | None:
        """The most shared memory that "elastic" may reserve.

        None if there is no limit, or if the allocator is not "elastic".
        """
        return self.engine.shared_limit if self.name == "elastic" else None

    def rebalance(self, most: int | str | None = None) -> int:
        """Moves live blocks from shared back to dedicated memory. Returns the bytes moved.

        The addresses stay the same. The longest-lived blocks move first. The call waits for the
        device.

        Args:
            most: The most bytes to move; by default all that dedicated memory has room for.

        Raises:
            InputError: If the allocator cannot move blocks.
        """
        if self.name != "elastic":
            raise InputError(f"the {self.name} allocator cannot move live blocks")
        return self.engine.rebalance(None if most is None else parse_size(most))

    def make_pool(self, *, use_on_oom: bool = False, no_split: bool = False) -> MemoryPool:
        """Makes a private pool.

        Args:
            use_on_oom: Whether a request outside the pool may take the pool's free memory instead
                of failing.
            no_split: Whether blocks of the pool are never split.

        Raises:
            InputError: If the allocator has no private pools.
        """
        if self.name == "uncached" and (use_on_oom or no_split):
            raise InputError("the uncached allocator has no private pools")
        pool = MemoryPool(self)
        self.engine.begin_allocate_to_pool(*pool.id, None)
        self.engine.end_allocate_to_pool(*pool.id)
        if use_on_oom:
            self.engine.set_pool_option(*pool.id, _core.PoolOption.use_on_oom, True)
        if no_split:
            self.engine.set_pool_option(*pool.id, _core.PoolOption.no_split, True)
        return pool

    @contextmanager
    def use_pool(self, pool: MemoryPool, *, stream: int | None = None) -> Iterator[None]:
        """Serves the requests inside the `with` block from a private pool.

        Args:
            pool: The pool.
            stream: Only requests on this stream come from the pool; None for all requests.

        Raises:
            InputError: If the pool was released, or is in use.
        """
        if pool._allocator is not self:
            raise InputError("this private pool belongs to another allocator")
        if pool.released:
            raise InputError("this private pool was released")
        try:
            self.engine.begin_allocate_to_pool(*pool.id, stream)
        except ValueError as error:
            raise InputError(str(error)) from None
        try:
            yield
        finally:
            self.engine.end_allocate_to_pool(*pool.id)
            self.engine.release_pool(*pool.id)

    # --- statistics ------------------------------------------------------------------------------

    def memory_stats(self) -> dict[str, int]:
        """Returns all counters by the keys of torch.cuda.memory_stats(), sorted.

        If requests may spill, the counters include `shared_allocated_bytes`,
        `shared_reserved_bytes`, `paused_bytes` and `num_spills`. PyTorch's own counters count
        dedicated and shared memory together.
        """
        return dict(sorted(self.engine.statistics(tiers=self.engine.may_spill).items()))

    def memory_allocated(self) -> int:
        """Returns the bytes in live blocks."""
        return self.engine.statistics()["allocated_bytes.all.current"]

    def max_memory_allocated(self) -> int:
        """Returns the most bytes in live blocks since the last reset."""
        return self.engine.statistics()["allocated_bytes.all.peak"]

    def memory_reserved(self) -> int:
        """Returns the bytes reserved from the driver."""
        return self.engine.statistics()["reserved_bytes.all.current"]

    def max_memory_reserved(self) -> int:
        """Returns the most bytes reserved from the driver since the last reset."""
        return self.engine.statistics()["reserved_bytes.all.peak"]

    def reset_peak_memory_stats(self) -> None:
        """Sets the peak of each counter to the counter's current value."""
        self.engine.reset_peak_statistics()

    def reset_accumulated_memory_stats(self) -> None:
        """Resets the accumulated counters, such as the total of all allocated bytes, to 0."""
        self.engine.reset_accumulated_statistics()

    def mem_get_info(self) -> tuple[int, int]:
        """Returns the free and the total bytes of the device, as the driver counts them."""
        return self.gpu.free_bytes, self.gpu.total_bytes

    def memory_summary(self, *, abbreviated: bool = False) -> str:
        """Returns the table of torch.cuda.memory_summary().

        If requests may spill, lines on dedicated and shared memory follow.
        """
        table = summary_text(self.memory_stats(), self.device, abbreviated=abbreviated)
        return table + tiers_text(self.engine) if self.engine.may_spill else table

    def shared_use(self) -> SharedUse | None:
        """Returns the use of shared memory so far, and a lower bound of the time that it cost.

        Returns None if requests cannot spill and no block was placed in shared memory.
        """
        stats = self.engine.statistics()
        if self.policy == "strict" and not stats["shared_reserved_bytes.peak"]:
            return None
        return SharedUse.measure(
            stats,
            total_bytes=self.gpu.machine.shared_total_bytes,
            peak_dedicated_bytes=self.engine.peak_dedicated,
            by_driver=self.name != "elastic",
        )

    # --- history and snapshots -------------------------------------------------------------------

    def record_memory_history(self, *, max_entries: int = 1_000_000, stacks: bool = False) -> None:
        """Starts to keep the newest `max_entries` events; 0 stops the recording.

        Args:
            max_entries: The most events kept; older ones are dropped.
            stacks: Whether to keep the Python call stack of each request.
        """
        if max_entries < 0:
            raise InputError(f"a history holds 0 or more events, not {max_entries}")
        self.engine.record_history(max_entries)
        self._record_stacks = stacks and max_entries > 0
        self.engine.set_context(0)

    def memory_snapshot(self) -> dict[str, Any]:
        """Returns segments, history and settings in the form of torch.cuda.memory._snapshot()."""
        snapshot = snapshot_dict(
            self.engine,
            self.device,
            self.conf,
            self.config,
            self._stacks,
            self.name,
            self.version,
        )
        self.engine.note_snapshot()
        return snapshot

    def dump_snapshot(self, path: str | PathLike[str]) -> None:
        """Writes `memory_snapshot()` as a pickle that PyTorch's memory viewer reads.

        Raises:
            InputError: If the file exists already, or cannot be written.
        """
        content = pickle.dumps(self.memory_snapshot())
        with NewFile(path) as file:
            file.write(content)

    def check_invariants(self) -> None:
        """Checks that the allocator's bookkeeping is consistent, block by block; for tests.

        Raises:
            RuntimeError: If the bookkeeping is inconsistent.
        """
        self.engine.check_invariants()

    def _note_stack(self) -> None:
        if not self._record_stacks:
            return
        frames = []
        frame = sys._getframe(2)
        while frame is not None:
            code = frame.f_code
            frames.append((code.co_filename, frame.f_lineno, code.co_name))
            frame = frame.f_back  # type: ignore[assignment]
        key = tuple(frames)
        number = self._stack_numbers.get(key)
        if number is None:
            number = self._stack_numbers[key] = len(self._stacks)
            self._stacks.append(frames)
        self.engine.set_context(number)
