"""Tests the C functions by which other libraries call an engine (the allocator of one GPU)."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

import pytest

from plimsoll import SimulatedGpu, _core
from plimsoll.base.units import GiB, KiB, MiB

SUCCESS, OUT_OF_MEMORY, FAILED, _, UNKNOWN_ADDRESS = range(5)
ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC = range(4)
USE_ON_OOM, NO_SPLIT = range(2)
VERSION = "2.11"


class PoolId(ctypes.Structure):
    _fields_ = (("first", c_uint64), ("second", c_uint64))


class Stat(ctypes.Structure):
    _fields_ = tuple((name, c_int64) for name in ("current", "peak", "allocated", "freed"))


class PoolStat(ctypes.Structure):
    _fields_ = tuple((name, Stat) for name in ("all", "small_pool", "large_pool"))


POOL_STATS = (
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)
STATS = ("oversize_allocations", "oversize_segments")
COUNTS = (
    "num_alloc_retries",
    "num_ooms",
    "num_sync_all_streams",
    "num_device_alloc",
    "num_device_free",
    "num_oom_rejections",
    "max_split_size",
)


class Statistics(ctypes.Structure):
    _fields_ = (
        *((name, PoolStat) for name in POOL_STATS),
        *((name, Stat) for name in STATS),
        *((name, c_int64) for name in COUNTS),
    )


class Block(ctypes.Structure):
    _fields_ = (
        *((name, c_uint64) for name in ("address", "size", "requested")),
        *((name, c_uint32) for name in ("state", "reserved")),
    )


class Segment(ctypes.Structure):
    _fields_ = (
        *((name, c_uint64) for name in ("address", "total_size", "stream")),
        ("pool", PoolId),
        *((name, c_uint32) for name in ("is_small", "is_expandable")),
        ("block_count", c_uint64),
        ("blocks", POINTER(Block)),
        ("number", c_uint64),
    )


class Event(ctypes.Structure):
    _fields_ = (
        *((name, c_uint64) for name in ("address", "size", "stream")),
        ("pool", PoolId),
        ("time_us", c_int64),
        *((name, c_uint32) for name in ("action", "reserved")),
        ("shared", c_uint64),
    )


class Place(ctypes.Structure):
    _fields_ = (
        *((name, c_uint64) for name in ("block", "block_size", "segment", "segment_size")),
        ("stream", c_uint64),
        ("pool", PoolId),
        *((name, c_uint32) for name in ("is_virtual", "reserved")),
    )


FILTER = ctypes.CFUNCTYPE(c_int, c_void_p, c_uint64)
DROP = ctypes.CFUNCTYPE(None, c_void_p)
VISIT = ctypes.CFUNCTYPE(None, c_void_p, POINTER(Segment))
OBSERVE = ctypes.CFUNCTYPE(None, c_void_p, POINTER(Event))


def function(*arguments: Any, returns: Any = c_int) -> Any:
    return ctypes.CFUNCTYPE(returns, *arguments)


ENGINE, U64, OUT = c_void_p, c_uint64, POINTER(c_uint64)


class Table(ctypes.Structure):
    _fields_ = (
        ("version", c_uint32),
        ("last_error", function(returns=c_char_p)),
        ("malloc", function(ENGINE, U64, U64, c_uint32, OUT)),
        ("malloc_at", function(ENGINE, U64, U64, U64, PoolId)),
        ("free", function(ENGINE, U64, c_uint32)),
        ("record_stream", function(ENGINE, U64, U64)),
        ("locate", function(ENGINE, U64, POINTER(Place))),
        ("empty_cache", function(ENGINE, PoolId)),
        ("memory_info", function(ENGINE, OUT, OUT)),
        ("set_limit", function(ENGINE, c_int, U64, returns=None)),
        ("largest_free_block", function(ENGINE, returns=U64)),
        ("begin_allocate_to_pool", function(ENGINE, PoolId, FILTER, c_void_p, DROP)),
        ("end_allocate_to_pool", function(ENGINE, PoolId)),
        ("begin_graph_capture", function(ENGINE)),
        ("end_graph_capture", function(ENGINE)),
        ("use_pool", function(ENGINE, PoolId)),
        ("release_pool", function(ENGINE, PoolId)),
        ("pool_uses", function(ENGINE, PoolId, POINTER(c_int))),
        ("set_pool_option", function(ENGINE, PoolId, c_int, c_int)),
        ("statistics", function(ENGINE, POINTER(Statistics), returns=None)),
        ("reset_peak_statistics", function(ENGINE, returns=None)),
        ("reset_accumulated_statistics", function(ENGINE, returns=None)),
        ("segments", function(ENGINE, VISIT, c_void_p)),
        ("observe", function(ENGINE, OBSERVE, c_void_p, returns=None)),
        ("enable_peer", function(ENGINE, c_int)),
        (
            "export_memory",
            function(ENGINE, U64, OUT, POINTER(c_int), OUT, c_size_t, POINTER(c_size_t)),
        ),
        ("import_memory", function(ENGINE, POINTER(c_int), OUT, c_size_t, OUT)),
        ("close_memory", function(ENGINE, U64)),
    )


class Live:
    """An engine on a simulated GPU. The tests call it through a table of C functions."""

    def __init__(
        self, memory: int = GiB, allocator: str = "native", conf: str = "", account: bool = True
    ) -> None:
        self.gpu = SimulatedGpu(memory)
        self.engine = _core.Engine.simulated(self.gpu._driver, allocator, conf, VERSION, 0, account)
        self.table = Table.from_address(_core.engine_api())
        self.handle = c_void_p(self.engine.handle)

    def call(self, name: str, *arguments: Any) -> int:
        status: int = getattr(self.table, name)(self.handle, *arguments)
        return status

    def malloc(self, size: int, stream: int = 0) -> int:
        address = c_uint64()
        assert self.call("malloc", size, stream, 0, byref(address)) == SUCCESS
        return address.value

    def free(self, address: int) -> None:
        assert self.call("free", address, 0) == SUCCESS

    def last_error(self) -> str:
        text: bytes = self.table.last_error()
        return text.decode()

    def locate(self, address: int) -> Place:
        place = Place()
        assert self.call("locate", address, byref(place)) == SUCCESS
        return place

    def statistics(self) -> Statistics:
        result = Statistics()
        self.call("statistics", byref(result))
        return result


@pytest.fixture
def live() -> Live:
    return Live()


# --- blocks --------------------------------------------------------------------------------------


def test_the_table_is_of_the_headers_version(live: Live) -> None:
    assert live.table.version == 1


def test_memory_is_lent_and_returned_by_address(live: Live) -> None:
    address = live.malloc(30 * MiB)
    assert live.call("record_stream", address, 7) == SUCCESS
    live.free(address)
    assert live.call("empty_cache", PoolId()) == SUCCESS
    assert live.gpu.dedicated_used_bytes == 0


@pytest.mark.parametrize(("name", "more"), [("free", (0,)), ("close_memory", ())])
def test_an_unknown_address_changes_nothing(live: Live, name: str, more: tuple[int, ...]) -> None:
    address = live.malloc(KiB)
    assert live.call(name, address + 512, *more) == UNKNOWN_ADDRESS
    assert live.last_error() == f"{address + 512:#x} is not allocated"
    assert live.call("record_stream", address + 512, 1) == UNKNOWN_ADDRESS
    assert live.statistics().allocation.all.current == 1


def test_out_of_memory_speaks_pytorchs_sentence(live: Live) -> None:
    live.malloc(600 * MiB)
    assert live.call("malloc", 600 * MiB, 0, 0, byref(c_uint64())) == OUT_OF_MEMORY
    text = live.last_error()
    assert text.startswith("CUDA out of memory. Tried to allocate 600.00 MiB. GPU 0 has a total")


def test_each_thread_has_an_error_text_of_its_own(live: Live) -> None:
    assert live.call("free", 512, 0) == UNKNOWN_ADDRESS
    seen: list[str] = []
    thread = threading.Thread(target=lambda: seen.append(live.last_error()))
    thread.start()
    thread.join()
    assert seen == [""]
    assert live.last_error() == "0x200 is not allocated"


def test_a_block_is_found_from_any_of_its_bytes(live: Live) -> None:
    first, second = live.malloc(3 * MiB, 5), live.malloc(3 * MiB, 5)
    place = live.locate(second + 3 * MiB - 1)
    assert (place.block, place.block_size) == (second, 3 * MiB)
    assert (place.segment, place.segment_size) == (first, 20 * MiB)
    assert (place.stream, place.is_virtual) == (5, 0)
    assert live.call("locate", second + 3 * MiB, byref(Place())) == UNKNOWN_ADDRESS


def test_a_block_is_taken_at_its_old_place(live: Live) -> None:
    address = live.malloc(20 * MiB)
    live.free(address)
    at = address + 4 * MiB
    assert live.call("malloc_at", at, 2 * MiB, 0, PoolId()) == SUCCESS
    assert live.call("malloc_at", at, 2 * MiB, 0, PoolId()) == FAILED
    assert live.last_error() == f"no free block has {2 * MiB} bytes at {at:#x}"
    assert live.call("largest_free_block") == 14 * MiB
    live.free(at)
    assert live.call("largest_free_block") == 20 * MiB


def test_a_limit_holds_until_it_is_taken_back(live: Live) -> None:
    live.call("set_limit", 1, 100 * MiB)
    assert live.engine.limit == 100 * MiB
    assert live.call("malloc", 200 * MiB, 0, 0, byref(c_uint64())) == OUT_OF_MEMORY
    assert "100.00 MiB allowed" in live.last_error()
    live.call("set_limit", 0, 0)
    assert live.engine.limit is None
    live.malloc(200 * MiB)


def test_what_the_card_has_is_the_drivers(live: Live) -> None:
    free, total = c_uint64(), c_uint64()
    live.malloc(100 * MiB)
    assert live.call("memory_info", byref(free), byref(total)) == SUCCESS
    assert (free.value, total.value) == (GiB - 100 * MiB, GiB)


# --- private pools -------------------------------------------------------------------------------


def test_the_filter_chooses_what_goes_to_a_pool_and_is_dropped(live: Live) -> None:
    dropped: list[int] = []
    asked = FILTER(lambda data, stream: int(stream == (data or 0)))
    drop = DROP(lambda data: dropped.append(data or 0))
    pool = PoolId(0, 3)
    assert live.call("begin_allocate_to_pool", pool, asked, 7, drop) == SUCCESS
    inside, outside = live.malloc(3 * MiB, 7), live.malloc(3 * MiB, 8)
    assert live.locate(inside).pool.second == 3
    assert live.locate(outside).pool.second == 0
    assert dropped == []
    assert live.call("end_allocate_to_pool", pool) == SUCCESS
    assert dropped == [7]
    assert live.call("end_allocate_to_pool", pool) == FAILED


def test_a_pool_is_used_as_often_as_it_is_asked_for(live: Live) -> None:
    uses, pool = c_int(), PoolId(0, 1)
    assert live.call("set_pool_option", pool, NO_SPLIT, 1) == FAILED
    assert live.call("use_pool", pool) == SUCCESS
    assert live.call("use_pool", pool) == SUCCESS
    assert live.call("set_pool_option", pool, NO_SPLIT, 1) == SUCCESS
    assert live.call("set_pool_option", pool, USE_ON_OOM, 1) == SUCCESS
    assert live.call("set_pool_option", pool, USE_ON_OOM, 0) == SUCCESS
    assert live.call("set_pool_option", pool, NO_SPLIT, 0) == FAILED
    assert live.call("set_pool_option", pool, 2, 1) == FAILED
    assert live.call("pool_uses", pool, byref(uses)) == SUCCESS
    assert uses.value == 2
    assert live.call("release_pool", pool) == SUCCESS
    assert live.call("release_pool", pool) == SUCCESS
    assert live.call("release_pool", pool) == FAILED
    assert live.call("pool_uses", pool, byref(uses)) == SUCCESS
    assert uses.value == 0


# --- reports -------------------------------------------------------------------------------------


def test_the_statistics_are_those_of_python(live: Live) -> None:
    live.free(live.malloc(3 * MiB + 1))
    live.malloc(KiB)
    table, python = live.statistics(), live.engine.statistics()
    for name in POOL_STATS:
        for part in ("all", "small_pool", "large_pool"):
            for field in ("current", "peak", "allocated", "freed"):
                value = getattr(getattr(getattr(table, name), part), field)
                assert value == python[f"{name}.{part}.{field}"]
    for name in COUNTS:
        if name in python:
            assert getattr(table, name) == python[name]
    assert table.max_split_size == -1


def test_segments_are_visited_with_their_blocks(live: Live) -> None:
    kept = live.malloc(3 * MiB, 5)
    seen: list[tuple[int, int, int, list[tuple[int, int, int]]]] = []

    def visit(_: object, pointer: Any) -> None:
        segment: Segment = pointer.contents
        blocks = [segment.blocks[i] for i in range(segment.block_count)]
        seen.append(
            (
                segment.address,
                segment.total_size,
                segment.stream,
                [(block.address, block.size, block.state) for block in blocks],
            )
        )

    assert live.call("segments", VISIT(visit), None) == SUCCESS
    blocks = [(kept, 3 * MiB, 0), (kept + 3 * MiB, 17 * MiB, 2)]
    assert seen == [(kept, 20 * MiB, 5, blocks)]


def test_segments_are_numbered_in_the_order_in_which_they_were_made(live: Live) -> None:
    made = [live.malloc(20 * MiB, stream) for stream in (5, 6, 5)]
    numbers: dict[int, int] = {}

    def visit(_: object, pointer: Any) -> None:
        numbers[pointer.contents.address] = pointer.contents.number

    assert live.call("segments", VISIT(visit), None) == SUCCESS
    assert sorted(numbers, key=lambda address: numbers[address]) == made


@pytest.mark.parametrize("account", [True, False])
def test_events_are_told_until_nobody_listens(account: bool) -> None:
    live = Live(account=account)
    seen: list[tuple[int, int, int]] = []

    def observe(_: object, pointer: Any) -> None:
        event: Event = pointer.contents
        seen.append((event.action, event.size, event.stream))

    listener = OBSERVE(observe)
    live.call("observe", listener, None)
    address = live.malloc(3 * MiB, 5)
    live.free(address)
    live.call("observe", OBSERVE(), None)
    live.malloc(3 * MiB, 5)
    assert seen == [
        (SEGMENT_ALLOC, 20 * MiB, 5),
        (ALLOC, 3 * MiB, 5),
        (FREE_REQUESTED, 3 * MiB, 5),
        (FREE_COMPLETED, 3 * MiB, 5),
    ]


def test_what_this_gpu_cannot_do_is_an_error(live: Live) -> None:
    address = live.malloc(3 * MiB)
    assert live.call("enable_peer", 1) == FAILED
    count, number = c_size_t(), c_uint64()
    descriptor, size = (c_int * 1)(0), (c_uint64 * 1)(2 * MiB)
    exported = (byref(number), descriptor, size, 1, byref(count))
    assert live.call("export_memory", address, *exported) == FAILED
    assert live.call("import_memory", descriptor, size, 1, byref(number)) == FAILED
    assert live.last_error().startswith("the driver failed to map another process's memory")


# --- the account: counts and peaks of an engine's whole life -------------------------------------


def test_the_account_outlives_resets(live: Live) -> None:
    live.free(live.malloc(100 * MiB))
    live.call("empty_cache", PoolId())
    live.call("reset_peak_statistics")
    live.call("reset_accumulated_statistics")
    live.malloc(30 * MiB)
    assert live.engine.statistics()["allocated_bytes.all.peak"] == 30 * MiB
    account = live.engine.account()
    assert account["peak_allocated_bytes"] == account["peak_reserved_bytes"] == 100 * MiB
    assert account["num_device_alloc"] == 2
    assert account["num_device_free"] == 1
    assert account["driver"] == "simulated"


def test_the_account_says_what_the_card_had_in_use(live: Live) -> None:
    assert live.gpu._driver.take(200 * MiB)  # takes memory as another process would
    live.free(live.malloc(100 * MiB))
    live.call("empty_cache", PoolId())
    account = live.engine.account()
    assert account["card_peak_bytes"] == 300 * MiB
    assert account["card_total_bytes"] == GiB


@pytest.mark.parametrize("allocator", ["elastic", "native", "uncached"])
def test_the_account_says_what_pytorch_would_have_come_to(allocator: str) -> None:
    live = Live(allocator=allocator)
    kept = [live.malloc(size * MiB) for size in (3, 30, 15)]
    live.free(kept[1])
    live.call("empty_cache", PoolId())
    live.malloc(40 * MiB)
    account = live.engine.account()
    assert account["torch_peak_reserved_bytes"] == 20 * MiB + 40 * MiB
    assert account["torch_first_failure"] is None
    assert account["torch_stopped"] is None
    assert account["torch_events"] == 6


def test_the_account_says_where_pytorch_would_have_failed() -> None:
    live = Live(memory=64 * MiB, allocator="uncached")
    for _ in range(8):
        live.malloc(7 * MiB)  # PyTorch would put two of these into a segment of 20 MiB
    failure = live.engine.account()["torch_first_failure"]
    assert isinstance(failure, str)
    assert failure.startswith("CUDA out of memory. Tried to allocate 20.00 MiB.")


def test_without_an_account_nothing_is_said_of_pytorch() -> None:
    live = Live(account=False)
    live.malloc(MiB)
    account = live.engine.account()
    assert account.keys() == Live().engine.account().keys()
    unknown = {name for name, value in account.items() if value is None}
    assert unknown == {name for name in account if name.startswith("torch_")} | {"card_peak_bytes"}


# --- engines -------------------------------------------------------------------------------------


@pytest.mark.parametrize("allocator", ["elastic", "native", "uncached"])
def test_several_threads_use_one_engine(allocator: str) -> None:
    live = Live(memory=8 * GiB, allocator=allocator)

    def work(stream: int) -> None:
        kept: list[int] = []
        for i in range(400):
            kept.append(live.malloc((i % 37 + 1) * 100 * KiB, stream))
            if len(kept) > 10:
                live.free(kept.pop(0))
        for address in kept:
            live.free(address)

    threads = [threading.Thread(target=work, args=(stream,)) for stream in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    live.call("empty_cache", PoolId())
    assert live.gpu.dedicated_used_bytes == 0
    account = live.engine.account()
    assert account["torch_events"] == 3 * 4 * 400
    assert account["torch_stopped"] is None


def test_an_engine_outlives_its_python_object() -> None:
    live = Live()
    address = live.malloc(3 * MiB)
    del live.engine, live.gpu
    live.free(address)
    assert live.statistics().allocation.all.current == 0


@pytest.mark.parametrize(
    ("allocator", "conf", "complaint"),
    [
        ("plastic", "", "unknown allocator 'plastic'; there are native, elastic and uncached"),
        ("native", "max_split_size_mb:1", "max_split_size"),
    ],
)
def test_an_engine_says_what_is_wrong_with_its_options(
    allocator: str, conf: str, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        Live(allocator=allocator, conf=conf)


# --- PyTorch's own interface ---------------------------------------------------------------------


def test_pluggable_functions_serve_the_newest_engine_of_a_gpu() -> None:
    live = Live()
    functions = _core.pluggable_functions()

    def pointer(name: str, *arguments: Any, returns: Any = None) -> Callable[..., Any]:
        call: Callable[..., Any] = function(*arguments, returns=returns)(functions[name])
        return call

    alloc = pointer("alloc", c_size_t, c_int, c_void_p, returns=c_void_p)
    free = pointer("free", c_void_p, c_size_t, c_int, c_void_p)
    assert alloc(0, 0, None) is None
    address = alloc(3 * MiB, 0, 5)
    assert live.locate(address).stream == 5
    pointer("record_stream", c_void_p, c_void_p)(address, 6)

    size = c_size_t()
    base = pointer("base_alloc", c_void_p, POINTER(c_size_t), returns=c_void_p)
    assert base(address + 512, byref(size)) == address
    assert size.value == 20 * MiB

    uses = c_int()
    live.call("use_pool", PoolId(0, 1))
    pointer("release_pool", c_int, PoolId)(0, PoolId(0, 1))
    live.call("pool_uses", PoolId(0, 1), byref(uses))
    assert uses.value == 0

    free(address, 3 * MiB, 0, 5)
    pointer("reset")()
    assert live.gpu.dedicated_used_bytes == 0
    pointer("memory_fraction", ctypes.c_double, c_int)(0.5, 0)
    assert live.engine.limit == GiB // 2


def test_a_pluggable_free_that_fails_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    Live()
    address = _core.pluggable_functions()["free"]
    function(c_void_p, c_size_t, c_int, c_void_p, returns=None)(address)(512, 1, 0, None)
    expected = "plimsoll: memory of GPU 0 could not be freed: 0x200 is not allocated\n"
    assert capfd.readouterr().err == expected
