"""The simulated GPUs of a process, and the records of their use."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plimsoll import _core
from plimsoll.base.errors import InputError, OutOfMemoryError
from plimsoll.base.telemetry.job import rank_of_process
from plimsoll.base.torch_environment import is_caching_forbidden
from plimsoll.base.watchers import Watchers
from plimsoll.engine.gpus.card_files import CONTEXT_PARTS
from plimsoll.engine.gpus.recorded_card import card_entry
from plimsoll.engine.plans.plan_file import read_plan
from plimsoll.engine.plans.use import PlanUse
from plimsoll.engine.simulator.allocator import Allocator
from plimsoll.engine.simulator.machine import SimulatedMachine
from plimsoll.engine.snapshot import note_fragments, snapshot_dict
from plimsoll.offloading.tiers.limits import Tiers, warn_of_spills
from plimsoll.recordings.origin import PHASES, ROLES, Origin
from plimsoll.torch.building import versions
from plimsoll.torch.building.compiler import load
from plimsoll.torch.simulated import library
from plimsoll.torch.simulated.compiled.first_calls import FirstCalls
from plimsoll.torch.simulated.compiled.kernels import KernelCounts
from plimsoll.torch.simulated.compiled.leftovers import Leftovers
from plimsoll.torch.simulated.driver_memory import DriverMemory
from plimsoll.torch.simulated.graph_memory import GraphMemory
from plimsoll.torch.simulated.memory_limits import MemoryLimit
from plimsoll.torch.simulated.program_frames import is_in_open_loop, is_tested, where
from plimsoll.torch.simulated.ranks.communicators import Communicators
from plimsoll.torch.simulated.ranks.pretended import pretended_world
from plimsoll.torch.wheel.own_allocator import allocator_of_unknown, own_allocator

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable, Collection

    from plimsoll.engine.gpus.profiles import GpuProfile
    from plimsoll.engine.protocol import AllocatorName
    from plimsoll.torch.simulated.pluggable import PluggableAllocator
    from plimsoll.torch.simulated.serving_use import ServingUse
    from plimsoll.torch.simulated.setup import Setup

_ALL_EVENTS = 1 << 40
_WITHOUT_END = 1 << 42
"""The size of an unlimited card, in bytes.

No program takes so much, and the address space has room for many such cards.
"""


class Simulation:
    """The simulated GPUs of this process, and the records of their use.

    Attributes:
        watchers: Calls plimsoll's code that watches the program. If this code fails, the report
            names the error, and the program runs on.
        runners: Files whose code runs the program. Call stacks end before their frames.
        is_initialized: Whether PyTorch has initialized CUDA, and so made its allocators.
        last_settings: The allocator settings that were applied last. They come from the
            environment, the command or the program.
        captures: The number of captures of CUDA graphs that were begun.
        kernel_counts: Counts the launches of Triton's kernels.
        leftovers: Frees reference cycles that compiling leaves behind.
        first_calls: The additional work of first calls of compiled code, such as tuning kernels.
        rank: This process's rank in its job; None if it is not part of a job.
        world_size: The job's number of processes; None if there is no job.
        pretended_world: The job's number of processes if only this process runs; otherwise None.
        groups: The ranks of each process group that was made, also of groups without this rank.
        groups_with_sends: The ranks of each group in which this rank sent a message to one other
            rank, or received one.
        contexts_of_threads: The GPUs whose context another thread than the main one made, although
            the process already had a context on another GPU.
        loaded: For each GPU, the parts of its CUDA context that the process has loaded (names from
            CONTEXT_PARTS). A part that was loaded twice is listed twice.
        communicators: NCCL's communicators, and their memory.
        limits: For each GPU, the memory limits that the program set, the oldest first.
        card_files: For each GPU, the file in which processes note their memory on its card.
        size_read_at: The first line at which the program read a card's memory size, or None.
        graphs: The memory that the driver allocated for CUDA graphs.
        driver_memory: The memory that the program requested from the driver itself.
        serving: How a serving engine in this process divides its card; None without one.
        replaced_allocation: The allocator of a preloaded library (preloaded.py); None without one.
        give_up: Called with the reason when other ranks of the job should stop waiting for this
            rank.
        is_caching_forbidden: Whether PYTORCH_NO_CUDA_MEMORY_CACHING forbids the cache, so that the
            allocator is "uncached" and PyTorch's own statistics count nothing.
    """

    def __init__(self, setup: Setup, lib: ctypes.CDLL | None = None) -> None:
        self.setup = setup
        self.watchers = Watchers()
        self.profiles = profiles = setup.profiles()
        self.version = versions.torch_version()
        memory = setup.host_memory_bytes or _core.host_memory()[1]
        sizes = [_WITHOUT_END if setup.unlimited else profile.total_bytes for profile in profiles]
        self.machine = SimulatedMachine(sizes, host_memory=memory, driver=setup.driver)
        self.limits: list[list[MemoryLimit]] = [[] for _ in profiles]
        self._wheel = own_allocator() if setup.wheel else 0
        # check.py tests only the library that it passes as `lib`. The library with PyTorch's own
        # allocator may not be built yet when check.py runs.
        if lib is None and not setup.wheel:
            self._wheel = allocator_of_unknown()
        self.allocators = self._make_allocators(setup.conf)
        self.fractions = [a.config.per_process_memory_fraction for a in self.allocators]
        self.driver_memory = DriverMemory(self.machine.gpus)
        self.card_files: dict[int, str] = {}
        self.size_read_at: str | None = None
        self.serving: ServingUse | None = None
        self.replaced_allocation: PluggableAllocator | None = None
        self.give_up: Callable[[str], None] = lambda _: None
        self._card_file: Callable[[int], str] | None = None
        self.contexts: set[int] = set()
        self.contexts_of_threads: set[int] = set()
        self.loaded: list[list[str]] = [[] for _ in profiles]
        self.is_caching_forbidden = False
        self.keeps_history = False
        self.is_over = False
        self.is_initialized = False
        self.last_settings = setup.conf
        self.capturing: set[int] = set()
        self.captures = 0
        self.is_observed = False
        self.rank: int | None = None
        self.world_size: int | None = None
        self.pretended_world = pretended_world()
        self.groups: list[list[int]] = []
        self.groups_with_sends: list[list[int]] = []
        self._on_letter: Callable[[], None] | None = None
        self.communicators = Communicators(profiles, self.machine.gpus, self.loaded)
        self.out_of_memory_observers: list[Callable[[int, int, int, int], object]] = []
        self._takes_environment = not setup.conf
        self._history = 0
        self._keeps_lines = False
        self._events: _core.EventBuffer | None = None
        self._after_import: list[Callable[[], None]] = []
        self._on_first_use: list[Callable[[], None]] = []
        self._on_waiting: Callable[[int], bool] | None = None
        self.runners = {"<frozen runpy>"}
        self.kernel_counts = KernelCounts()
        self.leftovers = Leftovers()
        self.first_calls = FirstCalls(self._history_sizes)
        self.library = library.Library(lib or load(library.SIMULATED_GPU))
        self.library.limit_pinned(setup.conf)
        self.graphs = GraphMemory(self.machine.gpus, self.library.lib.plimsoll_captured_nodes)
        self.library.start(
            self.version,
            [allocator.engine.handle for allocator in self.allocators],
            [gpu._driver.handle for gpu in self.machine.gpus],
            [_properties(profile) for profile in self.profiles],
        )
        self._set_workspaces()
        self.library.set_values(setup.values, setup.unknown, setup.seed)
        self.library.lib.plimsoll_keep_history(int(setup.is_recorded))
        self._answer_library()

    def _set_workspaces(self) -> None:
        """Gives the library the workspaces that were measured on these cards."""
        self.library.lib.plimsoll_forget_measured_workspaces()
        for device, profile in enumerate(self.profiles):
            self.library.set_convolutions(device, profile.convolutions, profile.searches)

    def _answer_library(self) -> None:
        """Registers this object's methods as the library's callbacks."""
        self.library.call_back(
            self._make_context,
            self._load,
            self._tell_observers,
            lambda: is_in_open_loop(self.runners),
            lambda: is_tested(self.runners),
            self._is_given_up,
        )

    def _history_sizes(self) -> tuple[int, ...]:
        return tuple(allocator.engine.history_size for allocator in self.allocators)

    def _make_allocators(self, conf: str) -> list[Allocator]:
        allocators = [
            Allocator(
                gpu,
                allocator=self.setup.allocator,
                policy=self.setup.policy,
                conf=conf,
                version=versions.rules_version(),
                wheel=self._wheel,
            )
            for gpu in self.machine.gpus
        ]
        for allocator, limits in zip(allocators, self.limits, strict=True):
            limits[:] = [MemoryLimit(0, allocator.config.per_process_memory_fraction)]
            self._lift_limit(allocator)
        self._follow_plan(allocators)
        return allocators

    def _follow_plan(self, allocators: list[Allocator]) -> None:
        if self.setup.plan is None or self.setup.allocator != "elastic":
            return
        plan = read_plan(self.setup.plan)
        for device, allocator in enumerate(allocators):
            own = plan.for_process(rank_of_process(), device)
            if own is not None:
                allocator.engine.set_plan(own)

    @property
    def has_own_allocator(self) -> bool:
        """Returns whether requests go to PyTorch's own allocator code, from its wheel."""
        return self._wheel != 0 and self.setup.allocator == "native"

    def plan_use(self, device: int) -> PlanUse | None:
        """Returns how far a GPU's requests followed the plan of addresses; None without a plan."""
        if self.setup.plan is None or self.setup.allocator != "elastic":
            return None
        return PlanUse.of_streams(self.allocators[device].engine.plan_use)

    def limit_memory(self, device: int, fraction: float) -> None:
        """Sets a limit like torch.cuda.set_per_process_memory_fraction.

        Raises:
            InputError: If `fraction` is not between 0 and 1.
        """
        allocator = self.allocators[device]
        allocator.set_per_process_memory_fraction(fraction)
        self.fractions[device] = fraction
        self.limits[device].append(MemoryLimit(allocator.engine.history_size, fraction))
        self._lift_limit(allocator)

    def _lift_limit(self, allocator: Allocator) -> None:
        """Removes the limit if `Setup.unlimited` is set, to measure the program's need."""
        if self.setup.unlimited:
            allocator.engine.limit = None

    def card_memory(self, device: int) -> tuple[int, int]:
        """Returns the free and the total bytes of a card, as the program sees them.

        If memory is unlimited, these are still the numbers of the real card, because a program may
        read them to choose its sizes.
        """
        gpu, total = self.machine.gpus[device], self.profiles[device].total_bytes
        return max(total - (gpu.total_bytes - gpu.free_bytes), 0), total

    def note_size_read(self) -> None:
        """Notes the program's current line as the first that read a card's memory size.

        Later calls keep that line. The program may choose its sizes by the card's memory size.
        """
        self.size_read_at = self.size_read_at or where(self.runners)

    def share_cards(self, file_of: Callable[[int], str]) -> None:
        """Shares the cards with other processes, from the first use of each card on.

        Args:
            file_of: Returns the file in which all processes note their memory on a GPU's card.
                Called at the GPU's first use.
        """
        self._card_file = file_of

    def share_card(self, device: int) -> None:
        """Reduces a card's free memory, from now on, by the memory of other processes."""
        if self._card_file is not None and device not in self.card_files:
            path = self._card_file(device)
            with suppress(OSError):  # the report then says that the card is not shared
                self.machine.gpus[device].share(path)
                self.card_files[device] = path

    def configure(self, settings: str) -> None:
        """Applies the program's settings, like torch.cuda.memory._set_allocator_settings.

        Like PyTorch, this first applies the environment's settings if nothing has applied them yet.
        Before the first use of CUDA, it also sets the memory limit that the settings contain.

        Raises:
            InputError: If the settings are invalid; nothing is changed then.
        """
        self.read_environment()
        first = self.allocators[0]
        try:
            conf = first.config.with_settings(settings, first.version).text
        except _core.ConfigError as error:
            raise InputError(str(error)) from None
        if self.is_initialized or not self._remake_allocators(conf):
            for allocator in self.allocators:
                allocator.configure(settings)
        self.library.limit_pinned(conf)
        self.last_settings = settings

    def _remake_allocators(self, conf: str) -> bool:
        """Replaces the allocators. Returns False if the program has used the old ones."""
        if any(a.memory_stats()["allocation.all.allocated"] for a in self.allocators):
            return False
        self.allocators[:] = self._make_allocators(conf)
        self.library.limit_pinned(conf)
        if not self.is_initialized:
            self.fractions[:] = [a.config.per_process_memory_fraction for a in self.allocators]
        for index, allocator in enumerate(self.allocators):
            self.library.replace_engine(index, allocator.engine.handle)
            allocator.engine.record_history(self._history)
            allocator.engine.record(self._events)
            if self.fractions[index] != allocator.config.per_process_memory_fraction:
                self.limit_memory(index, self.fractions[index])
        self.watch_tiers()
        return True

    def take_allocator(self, name: AllocatorName) -> bool:
        """Replaces the GPUs' allocator. Returns False if the program has used the old one."""
        before, self.setup = self.setup, replace(self.setup, allocator=name)
        if self._remake_allocators(self.allocators[0].conf):
            return True
        self.setup = before
        return False

    def read_environment(self) -> None:
        """Applies the environment's allocator settings once.

        `Setup.conf` takes the place of the settings in PYTORCH_CUDA_ALLOC_CONF.

        Raises:
            InputError: If the settings are invalid.
        """
        if not self.is_caching_forbidden and is_caching_forbidden():
            self.is_caching_forbidden = self.take_allocator("uncached")
        if not self._takes_environment:
            return
        self._takes_environment = False
        conf = os.environ.get("PYTORCH_ALLOC_CONF", os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""))
        if conf:
            self.configure(conf)

    @property
    def allocator(self) -> AllocatorName:
        """Name of the GPUs' allocator."""
        return self.setup.allocator

    def open(self, device: int) -> _core.Engine:
        """Returns the engine of a GPU."""
        return self.allocators[device].engine

    def opened(self) -> dict[int, _core.Engine]:
        """Returns the engines of all GPUs."""
        return {index: self.open(index) for index in range(len(self.allocators))}

    def watch_tiers(self) -> None:
        """Prepares the GPUs for requests that spill to host memory.

        If Windows' driver is simulated, plimsoll warns at the first spill. Under another driver,
        the allocator "elastic" gets the policy of `setup`; other allocators need nothing.
        """
        for engine in self.opened().values():
            if self.machine.driver == "wddm":
                warn_of_spills(engine)
            elif self.setup.allocator == "elastic":
                Tiers(self.setup.policy).apply(engine)

    def torch_is_imported(self) -> None:
        """Runs the actions of `after_import`; called once PyTorch is imported and patched."""
        for action in self._after_import:
            action()

    def end(self) -> None:
        """Stops noting frees: the interpreter ends, and frees all tensors that still live."""
        self.library.lib.plimsoll_end()
        self.is_over = True

    def observe(self) -> None:
        """Records all events with their call stacks from now on, for a report."""
        self.library.lib.plimsoll_record(1, 1)
        self.is_observed = True
        self._keep_history(_ALL_EVENTS)

    def keep_lines_of_assumptions(self) -> None:
        """Notes the program's lines of assumptions from now on, also if no events are recorded."""
        self._keeps_lines = True
        self._record(sites=False, stacks=False)

    def _record(self, *, sites: bool, stacks: bool) -> None:
        """Sets whether the library notes the sites of requests, and whether their call stacks."""
        for_assumptions = self._keeps_lines and not sites
        self.library.lib.plimsoll_record(int(sites), int(stacks or for_assumptions))

    def after_import(self, action: Callable[[], None]) -> None:
        """Calls `action` when PyTorch has been imported; immediately if it is imported already."""
        if "torch" in sys.modules:
            action()
        else:
            self._after_import.append(action)

    def on_first_use(self, action: Callable[[], None]) -> None:
        """Calls `action` when the program uses one of the GPUs for the first time."""
        self._on_first_use.append(action)

    def record_events(self, buffer: _core.EventBuffer | None, *, stacks: bool) -> None:
        """Writes every event from now on into `buffer`. If `buffer` is None, stops writing."""
        self._events = buffer
        for allocator in self.allocators:
            allocator.engine.record(buffer)
        if not self.is_observed and not self.keeps_history:
            self._record(sites=stacks, stacks=stacks)

    def is_forked(self) -> bool:
        """Returns whether this process may not use CUDA: its parent used CUDA before the fork."""
        return bool(self.library.lib.plimsoll_is_bad_fork())

    @property
    def has_contexts(self) -> bool:
        """Returns whether the process has a CUDA context on any device."""
        return bool(self.contexts)

    def end_with_sends(self, action: Callable[[], None]) -> None:
        """Calls `action` when this rank sends a message to one other rank, or receives one.

        `action` is expected to end the process. If it returns, the next message calls it again.
        """
        self._on_letter = action

    def note_letter(self, members: list[int]) -> None:
        """Notes that this rank exchanges a message with one other rank, in a group of `members`."""
        if members not in self.groups_with_sends:
            self.groups_with_sends.append(members)
        if self._on_letter is not None:
            self._on_letter()

    def nccl_bytes(self, device: int) -> int:
        """Estimates NCCL's peak bytes on a device: the middle of the range `nccl_range_bytes`."""
        return self.communicators.middle_bytes(device)

    def nccl_range_bytes(self, device: int) -> tuple[int, int] | None:
        """Returns the lowest and the highest value that NCCL's peak bytes on a device may have.

        Returns None if NCCL has allocated nothing there.
        """
        most = self.communicators.most.get(device)
        return None if most is None else (most.low, most.high)

    def _make_context(self, device: int) -> None:
        """Allocates the memory of a device's CUDA context, at the device's first use."""
        self.share_card(device)
        try:
            self.machine.gpus[device].take(self.profiles[device].context_with(()))
        except OutOfMemoryError as error:  # other processes use up the card's memory
            self._begin_use()
            raise sys.modules["torch"].OutOfMemoryError(str(error)) from None
        # `threading.current_thread` would add an entry for a thread that Python did not start.
        if self.contexts and threading.get_ident() != threading.main_thread().ident:
            self.contexts_of_threads.add(device)
        self.contexts.add(device)
        self._begin_use()

    def context_bytes(self, device: int) -> int:
        """Returns the bytes of the CUDA context on a device, with its loaded parts and graphs."""
        return self.context_on(self.profiles[device], device)

    def context_on(self, card: GpuProfile, device: int) -> int:
        """Returns the bytes that a device's CUDA context would take if the device were `card`."""
        if device not in self.contexts:
            return 0
        return card.context_with(self.loaded[device]) + self.graphs.taken[device]

    def _load(self, device: int, number: int) -> None:
        """Allocates the memory of a part of the CUDA context, when the process loads the part."""
        part, sizes = CONTEXT_PARTS[number], self.profiles[device].context_parts
        if part == "streams" and self.communicators.has_streams(device):
            return  # NCCL's communicators have already made the streams
        try:
            if part in sizes:  # if not, the context's constant size includes the part
                self.machine.gpus[device].take(sizes[part])
        except OutOfMemoryError as error:
            raise sys.modules["torch"].OutOfMemoryError(str(error)) from None
        self.loaded[device].append(part)

    def add_graph(self, graph: int, device: int, capture: int) -> None:
        """Calls `GraphMemory.add`. Raises PyTorch's OutOfMemoryError if the memory is missing."""
        try:
            self.graphs.add(graph, device, capture)
        except OutOfMemoryError as error:
            raise sys.modules["torch"].OutOfMemoryError(str(error)) from None

    def _begin_use(self) -> None:
        """Runs the actions of `on_first_use`, and forgets them."""
        actions, self._on_first_use = self._on_first_use, []
        for action in actions:
            action()

    def refuse_after_failure(self) -> None:
        """Raises CUDA's error if a kernel's check has failed on a device."""
        failure = self.library.failure()
        if failure is not None:
            torch = sys.modules["torch"]
            raise torch.AcceleratorError(
                f"{library.DEVICE_ASSERT}\nThe GPU failed before: {failure[0]}"
            )

    def set_capturing(self, device: int, *, on: bool) -> int:
        """Begins or ends the capture of a CUDA graph on a device. Returns the capture's number."""
        (self.capturing.add if on else self.capturing.discard)(device)
        self.captures += on
        return int(self.library.lib.plimsoll_set_capturing(device, int(on)))

    def _tell_observers(self, device: int, size: int) -> None:
        """Calls the out-of-memory observers with device, request, limit and free memory."""
        free, total = self.allocators[device].mem_get_info()
        most = self.allocators[device].limit_bytes or total
        for observer in self.out_of_memory_observers:
            observer(device, size, most, free)

    def on_waiting_for_ever(self, action: Callable[[int], bool]) -> None:
        """Sets a function that is called when the program waits for a value that never comes.

        Such a program reads a tensor's values in a loop, and none of them ends the loop. `action`
        is called with the number of the read's call stack. It returns whether to stop the program.
        """
        self._on_waiting = action

    def _is_given_up(self, stack: int) -> bool:
        return self._on_waiting is not None and self._on_waiting(stack)

    def record_history(self, enabled: str | None, context: str | None, max_entries: int) -> None:
        """Records the memory history, like torch.cuda.memory._record_memory_history."""
        self.keeps_history = enabled is not None
        keeps_stacks = self.keeps_history and context is not None
        self.library.lib.plimsoll_keep_history(int(keeps_stacks or self.setup.is_recorded))
        if self.is_observed:
            return  # the recording for the report continues, and contains all that is needed
        if self._events is None:
            self._record(sites=self.keeps_history, stacks=context is not None)
        self._keep_history(min(max_entries, _ALL_EVENTS) if enabled == "all" else 0)

    def _keep_history(self, max_entries: int) -> None:
        self._history = max_entries
        for allocator in self.allocators:
            allocator.engine.record_history(max_entries)

    def site_stacks(self) -> SiteStacks:
        """Returns the program's call stacks, by the number of the call site."""
        return SiteStacks(self.library, self.runners)

    def snapshot(self) -> dict[str, Any]:
        """Returns a snapshot of all devices, like torch.cuda.memory._snapshot.

        plimsoll adds the name and the memory size of each device's card.
        """
        stacks = self.site_stacks()
        parts = [
            snapshot_dict(a.engine, i, a.conf, a.config, stacks, a.name, a.version)
            for i, a in enumerate(self.allocators)
        ]
        for allocator in self.allocators:
            allocator.engine.note_snapshot()
        whole = parts[0]
        for part in parts[1:]:
            for device, fragments in part["allocator_settings"].get("fragments_bytes", {}).items():
                note_fragments(whole["allocator_settings"], device, fragments)
        whole["segments"] = [segment for part in parts for segment in part["segments"]]
        whole["device_traces"] = [part["device_traces"][i] for i, part in enumerate(parts)]
        whole["allocator_settings"]["gpus"] = [
            card_entry(i, card.name, card.total_bytes) for i, card in enumerate(self.profiles)
        ]
        return whole


class SiteStacks:
    """The program's call stacks by the number of the call site, innermost frame first.

    A made-up frame before the innermost one tells where the request came from, for example from a
    backward pass. The stack of site 0 has no made-up frame. `runners` are files that run the
    program. Their frames at the end of a stack are left out.
    """

    def __init__(self, lib: library.Library, runners: Collection[str]) -> None:
        self._library = lib
        self._runners = runners
        self._sites: list[library.Site] = []

    def __getitem__(self, context: int) -> list[tuple[str, int, str]]:
        if context >= len(self._sites):
            self._sites = self._library.sites()
        site = self._sites[context]
        frames = _core.stack_frames(site.stack)
        while frames and frames[-1][0] in self._runners:
            frames.pop()
        origin = Origin(
            PHASES[site.phase], site.grad_enabled, ROLES[site.role], has_grad_fn=site.has_grad_fn
        )
        return [origin.frame(), *frames] if context else frames


def _properties(profile: GpuProfile) -> library.DeviceProperties:
    major, minor = profile.compute_capability
    return library.DeviceProperties(
        profile.multiprocessors,
        major,
        minor,
        profile.max_threads_per_multiprocessor,
        profile.memory_bandwidth_bytes_per_s * 1e-9,
        profile.fp32_flops * 1e-9,
        profile.tensor_flops * 1e-9,
        profile.bus_bytes_per_s * 1e-9,
    )
