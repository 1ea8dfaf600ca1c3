"""
The engine of plimsoll: drivers, allocators, recordings and replay, in C++.
"""

from collections.abc import Callable, Sequence
import enum

import numpy
import numpy.typing


def host_memory() -> tuple[int, int]:
    """
    Free and total bytes of the host's memory, as far as this process may use them: a container's limits count.
    """

class Status(enum.Enum):
    success = 0

    out_of_memory = 1

    invalid_value = 2

    not_ready = 3

    not_supported = 4

    not_permitted = 5

    device_lost = 6

    driver_gone = 7

    failed = 8

class DriverModel(enum.Enum):
    linux = 0

    wddm = 1

class Call(enum.Enum):
    allocate = 0

    deallocate = 1

    reserve = 2

    unreserve = 3

    create = 4

    release = 5

    map = 6

    set_access = 7

    unmap = 8

    record = 9

    query = 10

    synchronize = 11

    allocate_host = 12

    deallocate_host = 13

    copy = 14

COPY_BYTES_PER_NS: float = 55.0

HOST_BYTES_PER_NS: float = 5.65

class SimulatedHost:
    def __init__(self, shared_capacity: int) -> None: ...

    @property
    def now_ns(self) -> float: ...

    def advance(self, duration_ns: float) -> None: ...

    @property
    def shared_free(self) -> int: ...

    @property
    def shared_total(self) -> int: ...

class SharedCard:
    def __init__(self, path: str) -> None: ...

    @property
    def users(self) -> list[tuple[int, int]]: ...

    @property
    def together(self) -> int: ...

    @property
    def at_most(self) -> int: ...

    @property
    def is_complete(self) -> bool: ...

class SimulatedDriver:
    def __init__(self, host: SimulatedHost, dedicated_capacity: int, model: DriverModel = DriverModel.linux, ordinal: int = 0) -> None: ...

    @property
    def handle(self) -> int: ...

    def share(self, card: SharedCard) -> None: ...

    def launch(self, stream: int, duration_ns: float) -> None: ...

    def synchronize_device(self) -> None: ...

    def take(self, size: int) -> int | None: ...

    def give_back(self, handle: int) -> bool: ...

    def allocate_host(self, size: int) -> int | None: ...

    def deallocate_host(self, address: int) -> bool: ...

    def inject(self, call: Call, after: int = 0, times: int | None = None, status: Status = Status.out_of_memory) -> None: ...

    def clear_faults(self) -> None: ...

    def calls(self, call: Call) -> int: ...

    @property
    def dedicated_free(self) -> int: ...

    @property
    def dedicated_total(self) -> int: ...

    @property
    def dedicated_used(self) -> int: ...

    @property
    def most_dedicated_used(self) -> int: ...

    @property
    def shared_used(self) -> int: ...

    @property
    def reserved_addresses(self) -> int: ...

    @property
    def reservations(self) -> int: ...

    @property
    def handles(self) -> int: ...

    @property
    def mappings(self) -> int: ...

    @property
    def events(self) -> int: ...

    @property
    def driver_seconds(self) -> float: ...

def action_names() -> list[str]:
    """The names of the actions, by code."""

class Columns:
    def __init__(self, action: numpy.ndarray, address: numpy.ndarray, size: numpy.ndarray, stream: numpy.ndarray, pool_first: numpy.ndarray, pool_second: numpy.ndarray) -> None: ...

class PoolId:
    def __init__(self, first: int = 0, second: int = 0) -> None: ...

    @property
    def first(self) -> int: ...

    @property
    def second(self) -> int: ...

class BlockInfo:
    def __init__(self, address: int, size: int, requested: int, state: str, context: int = 0) -> None: ...

    @property
    def address(self) -> int: ...

    @property
    def shared(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def requested(self) -> int: ...

    @property
    def state(self) -> str: ...

    @property
    def context(self) -> int: ...

class SegmentInfo:
    def __init__(self, address: int, total_size: int, stream: int, pool: PoolId, small: bool, expandable: bool, context: int, blocks: Sequence[BlockInfo]) -> None: ...

    @property
    def address(self) -> int: ...

    @property
    def shared(self) -> int: ...

    @property
    def paused(self) -> bool: ...

    @property
    def total_size(self) -> int: ...

    @property
    def stream(self) -> int: ...

    @property
    def pool(self) -> PoolId: ...

    @property
    def small(self) -> bool: ...

    @property
    def expandable(self) -> bool: ...

    @property
    def context(self) -> int: ...

    @property
    def blocks(self) -> list[BlockInfo]: ...

class PickleError(ValueError):
    pass

class RecordingError(ValueError):
    pass

class ReadingLimitError(RuntimeError):
    pass

class SnapshotFile:
    def __init__(self, content: bytes | bytearray, most_memory: int) -> None:
        """
        Read the pickle. Values take `most_memory` bytes at most, or ReadingLimitError is raised.
        """

    @property
    def device_count(self) -> int: ...

    @property
    def names_pools(self) -> bool: ...

    @property
    def has_host_memory(self) -> bool: ...

    def column(self, device: int, name: str) -> numpy.ndarray: ...

    def segments(self, device: int) -> list[SegmentInfo]: ...

    def stack(self, number: int) -> list[tuple[str, int, str]]: ...

    @property
    def settings(self) -> object: ...

class ConfigError(ValueError):
    pass

class UnknownAddress(ValueError):
    pass

class DriverError(RuntimeError):
    pass

class OutOfMemory(RuntimeError):
    pass

class HostOutOfMemory(RuntimeError):
    pass

class BackupError(RuntimeError):
    pass

OLDEST_VERSION: str = '2.9'

NEWEST_VERSION: str = '2.15'

def torch_rules() -> dict[str, tuple[int, int]]:
    """
    The rules that hold in some versions of PyTorch alone, and since which one each holds.
    """

def plain_version(version: str) -> str:
    """
    The version of PyTorch without patch level and build: 2.11 for 2.11.0+cu130.
    """

class AllocatorConfig:
    @staticmethod
    def parse(text: str, version: str) -> AllocatorConfig: ...

    def with_settings(self, text: str, version: str) -> AllocatorConfig:
        """This one after a program makes these settings too."""

    @property
    def text(self) -> str: ...

    @property
    def max_split_size(self) -> int | None: ...

    @property
    def max_non_split_rounding(self) -> int: ...

    @property
    def large_segment_size(self) -> int: ...

    @property
    def garbage_collection_threshold(self) -> float: ...

    @property
    def per_process_memory_fraction(self) -> float: ...

    @property
    def expandable_segments(self) -> bool: ...

    @property
    def roundup_power2_divisions(self) -> list[int]: ...

    @property
    def without_effect(self) -> list[tuple[str, str]]: ...

    def round_request(self, size: int) -> int: ...

    def segment_size(self, rounded: int) -> int: ...

def allocator_names() -> list[str]: ...

class PoolOption(enum.Enum):
    use_on_oom = 0

    no_split = 1

class ProgramPlan:
    """See plimsoll/planning/program_plan.h."""

    def __init__(self, streams: Sequence[tuple[Sequence[tuple[int, int]], Sequence[tuple[int, int, int]], int]]) -> None:
        """
        From (sections, slots, outside) of each stream: sections are (length, times), slots are (size, least, offset), outside is in bytes. Raises ValueError, with a line, if they do not make a plan.
        """

    @property
    def streams(self) -> list[tuple[list[tuple[int, int]], list[tuple[int, int, int]], int]]: ...

    @property
    def heights(self) -> list[int]:
        """Bytes of each stream's area."""

class PlanMaker:
    """See plimsoll/replay/plan_maker.h."""

    def __init__(self) -> None: ...

    def feed(self, columns: Columns) -> None: ...

    def plan(self) -> ProgramPlan: ...

class ReplayError(ValueError):
    pass

class Completion(enum.Enum):
    recorded = 0

    at_once = 1

    late = 2

class RecordedAllocator(enum.Enum):
    native = 0

    elastic = 1

    uncached = 2

class Replay:
    def __init__(self, allocator: str, conf: str, version: str, limit: int | None, gpu_memory: int, shared_memory: int | None, compare: bool, completion: Completion, emptied: Sequence[int] | None, device: int, recorded: RecordedAllocator) -> None: ...

    def restore(self, segments: Sequence[SegmentInfo]) -> None: ...

    def set_plan(self, plan: ProgramPlan) -> None:
        """Large requests lie where the plan says; before the first event."""

    @property
    def plan_use(self) -> list[tuple[int, int, int, tuple[int, int, int] | None]]: ...

    def scatter_segments(self, seed: int) -> None: ...

    def feed(self, columns: Columns) -> None: ...

    def finish(self) -> None: ...

    @property
    def events(self) -> int: ...

    @property
    def stopped(self) -> bool: ...

    @property
    def first_oom(self) -> int | None: ...

    @property
    def first_oom_report(self) -> tuple[int, int, int] | None: ...

    @property
    def avoided_ooms(self) -> int: ...

    @property
    def had_pending_frees(self) -> bool: ...

    @property
    def emptied(self) -> list[int]: ...

    @property
    def peak(self) -> tuple[int, int, int, int, int, int]: ...

    @property
    def first_difference(self) -> tuple[int, tuple[str, int, int] | None, tuple[str, int, int] | None] | None: ...

    @property
    def engine_seconds(self) -> float: ...

    @property
    def driver_seconds(self) -> float: ...

    @property
    def peak_dedicated(self) -> int: ...

    def statistics(self) -> dict[str, int]: ...

    def segments(self) -> list[SegmentInfo]: ...

class LimitEvidence:
    def __init__(self, conf: str, version: str, reserved_at_start: int) -> None: ...

    def feed(self, columns: Columns) -> None: ...

    @property
    def has_segments(self) -> bool: ...

    @property
    def range(self) -> tuple[int, int] | None: ...

def starts_from_nothing(columns: Columns, segments: Sequence[SegmentInfo]) -> bool: ...

def reconstruct_start(columns: Columns, segments: Sequence[SegmentInfo], conf: str, version: str) -> list[SegmentInfo]: ...

def capture_stack() -> int:
    """The number of this call stack, the caller's frame first."""

def join_stacks(inner: int, outer: int) -> int:
    """The number of the stack with the frames of both, those of inner first."""

def stack_frames(number: int) -> list[tuple[str, int, str]]:
    """The frames of a stack, innermost first: file, line, function."""

EVENT_MARK: int = 255

EVENT_LABEL: int = 254

class EventBuffer:
    @staticmethod
    def make(capacity: int) -> EventBuffer:
        """A buffer for so many events; it stays until the process ends."""

    @property
    def handle(self) -> int: ...

    def mark(self, number: int, time_us: int) -> None:
        """Add a row between the events, with EVENT_MARK as its action."""

    def label(self, number: int, device: int, address: int) -> None:
        """Add a row between the events, with EVENT_LABEL as its action."""

    def drain(self) -> tuple[numpy.ndarray, ...]:
        """
        Take all events that wait, as columns: device, and those of an event batch.
        """

    def close(self) -> None:
        """Give the memory back; events from now on are dropped."""

    @property
    def dropped(self) -> int: ...

def recorder_api() -> int:
    """The address of the table of C functions in plimsoll/recorder_api.h."""

class Engine:
    """See plimsoll/engine_api.h."""

    def __init__(self, allocator: str, driver: SimulatedDriver, conf: str, version: str, device: int, wheel: int = 0) -> None:
        """
        On a simulated GPU, which others may use too. `wheel` is the address of a
        plimsoll_wheel_api: PyTorch's own allocator, which then serves as "native".
        """

    @staticmethod
    def cuda(allocator: str, conf: str, version: str, device: int, account: bool) -> Engine:
        """One of this process's engines, which are never destroyed."""

    @staticmethod
    def simulated(driver: SimulatedDriver, allocator: str, conf: str, version: str, device: int, account: bool) -> Engine:
        """As `cuda`, over a simulated GPU."""

    def set_plan(self, plan: ProgramPlan) -> None:
        """
        Makes the elastic allocator place large requests as the plan says; call it before the first request.
        """

    @property
    def plan_use(self) -> list[tuple[int, int, int, tuple[int, int, int] | None]]: ...

    @property
    def handle(self) -> int: ...

    @property
    def fell_back(self) -> str | None: ...

    def allocate(self, size: int, stream: int) -> int:
        """
        The address of a block for work on that stream; raises OutOfMemory with PyTorch's text.
        """

    def allocate_at(self, address: int, size: int, stream: int, first: int, second: int) -> None:
        """Lend exactly these bytes of a pool's free block."""

    def free(self, address: int) -> None:
        """
        Work that is queued on the block's stream, and on those recorded, may still use it.
        """

    def record_stream(self, address: int, stream: int) -> None:
        """
        Another stream than its own uses the block: what is queued there by the time of its `free`.
        """

    def block_size(self, address: int) -> int: ...

    def empty_cache(self, first: int = 0, second: int = 0) -> None: ...

    def empty_host_cache(self) -> None:
        """Of page-locked memory, which the process's engines share."""

    def poll(self) -> None: ...

    def begin_allocate_to_pool(self, first: int, second: int, stream: int | None) -> None: ...

    def end_allocate_to_pool(self, first: int, second: int) -> None: ...

    def begin_graph_capture(self) -> None: ...

    def end_graph_capture(self) -> None: ...

    def use_pool(self, first: int, second: int) -> None: ...

    def release_pool(self, first: int, second: int) -> None: ...

    def set_pool_option(self, first: int, second: int, option: PoolOption, on: bool) -> None: ...

    def set_pool_source(self, first: int, second: int, give: int, take_back: int) -> None:
        """
        C functions of these addresses give and take a pool's segments: those of a
        torch.cuda.memory.CUDAPluggableAllocator.
        """

    def configure(self, settings: str) -> None:
        """
        Make settings on top of those before, as torch.cuda.memory._set_allocator_settings.
        """

    def reset_peak_statistics(self) -> None: ...

    def reset_accumulated_statistics(self) -> None: ...

    def check_invariants(self) -> None:
        """Raises RuntimeError if the allocator's books do not agree; for tests."""

    def record(self, buffer: EventBuffer | None) -> None:
        """Add every event from now on to a buffer, or to none."""

    def record_history(self, max_entries: int) -> None: ...

    def history(self) -> list[tuple[str, int, int, int, int, int, int, int, int]]: ...

    def history_columns(self) -> tuple[numpy.typing.NDArray[numpy.uint8], numpy.typing.NDArray[numpy.uint64], numpy.typing.NDArray[numpy.uint64], numpy.typing.NDArray[numpy.uint64], numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.uint64]]:
        """
        Action codes, addresses, sizes, streams, times, contexts and bytes in shared memory, of the history.
        """

    @property
    def history_size(self) -> int: ...

    @property
    def history_dropped(self) -> int: ...

    def set_context(self, context: int) -> None: ...

    def note_snapshot(self) -> None: ...

    def segments_at_snapshot(self) -> list[SegmentInfo]:
        """
        Records a `snapshot` event, and returns all segments. On simulated GPUs, no thread
        allocates or frees in between.
        """

    def account(self) -> dict[str, int | str | None]:
        """
        What the run came to; `torch_` says what PyTorch's own allocator would have.
        """

    @property
    def limit(self) -> int | None: ...

    @limit.setter
    def limit(self, limit: int | None) -> None: ...

    def set_fraction(self, fraction: float) -> None:
        """As torch.cuda.set_per_process_memory_fraction."""

    def set_dedicated_limit(self, limit: int | None) -> None:
        """What the person allows, whatever fraction the program sets."""

    def statistics(self, tiers: bool = True) -> dict[str, int]:
        """PyTorch's counters, and those of shared and paused memory."""

    def memory_info(self) -> tuple[int, int]:
        """(free, total) of the card's own memory."""

    def shared_info(self) -> tuple[int, int]:
        """(free, total) of the host memory that GPUs may use."""

    def segments(self) -> list[SegmentInfo]: ...

    def fragments_bytes(self) -> int | None:
        """
        Of the elastic allocator: free, and bound to where it lies; None if too many blocks are.
        """

    @property
    def spills(self) -> bool: ...

    @spills.setter
    def spills(self, arg: bool, /) -> None: ...

    @property
    def shared_limit(self) -> int | None: ...

    @shared_limit.setter
    def shared_limit(self, limit: int | None) -> None: ...

    def on_first_spill(self, told: Callable[[int], None]) -> None: ...

    @property
    def dedicated_allocated_bytes(self) -> tuple[int, int, int]:
        """
        Now, at the peak and in all the time; without what is in shared memory now, but for the last.
        """

    @property
    def shared_allocated_bytes(self) -> int: ...

    def rebalance(self, most: int | None = None) -> int:
        """Returns the bytes that moved."""

    def require_pausable(self, region: int) -> None:
        """Raises ValueError if `pause` would refuse, whatever memory there is."""

    def pause(self, region: int, keep: bool, file: int | None = None) -> int:
        """
        To page-locked memory, a file or, if the content is not to be kept, nowhere. Returns the bytes that the card got back.
        """

    def resume(self, region: int) -> int:
        """Returns the bytes that the card gave."""

    def is_paused(self, region: int) -> bool: ...

    def region_use(self, region: int) -> dict[str, int]: ...

    @property
    def may_spill(self) -> bool: ...

    @property
    def peak_dedicated(self) -> int: ...

    def host_reserved_bytes(self) -> int:
        """Page-locked memory that is held for copies."""

def set_placement(region: int | None, shared: bool = False) -> None:
    """
    Where this thread's requests go from now on: to a region, or none (0), preferring shared memory or not; None ends it.
    """

def region_pool(region: int) -> tuple[int, int]:
    """The id of the pool that a region is, for a graph to be captured into."""

def engine_api() -> int:
    """The address of the table of C functions in plimsoll/engine_api.h."""

def device_api() -> int:
    """The address of the table of C functions in plimsoll/device_api.h."""

def answer_cuda(cards: list[tuple[SimulatedDriver, int, int, int, int]], current_device: int, set_device: int, use: int, pin: int, unpin: int) -> int:
    """
    The address of the table of libcuda/calls.h, which answers from these GPUs from now
    on. They have to outlive the process's last call. A row is a GPU, the bytes of its
    card, its multiprocessors, and its compute capability. The other numbers are the
    addresses of C functions of the simulated CUDA runtime.
    """

def use_by_cuda(device: int) -> tuple[int, int, int]:
    """
    The memory of a card that the program holds by the driver's API, the most that it held
    at once, both in bytes, and how often the driver refused it memory.
    """

def size_read_by_cuda() -> bool:
    """Whether the program has read a card's size by the driver's API."""

def copied_by_cuda() -> bool:
    """Whether the program has copied memory of a card by the driver's API."""

def cuda_function(name: str) -> int:
    """
    The address of a function of CUDA's driver or runtime on simulated GPUs; 0 if it is not
    simulated.
    """

def replace_allocation(malloc: int, free: int) -> tuple[int, int]:
    """
    Addresses of the two functions of a CUDAPluggableAllocator that call a library's own
    cudaMalloc and cudaFree, whose addresses are the arguments.
    """

def redirect_imports(path: str) -> list[str]:
    """
    Make a loaded library call simulated GPUs instead of CUDA. Returns the names of the
    redirected functions.
    """

def own_function(path: str, name: str) -> int:
    """
    The address of a function that a loaded library itself defines; 0 if it has none.
    """

def pluggable_functions() -> dict[str, int]:
    """Addresses of C functions for torch.cuda.memory.CUDAPluggableAllocator."""
