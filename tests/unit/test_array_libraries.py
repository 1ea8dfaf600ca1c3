"""Tests that plimsoll's engines serve CuPy, Numba and RMM, which small stand-ins replace here."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from plimsoll import InputError, _core
from plimsoll.base.units import GiB, MiB
from plimsoll.torch.array_libraries import numba_arrays
from plimsoll.torch.array_libraries.cupy_arrays import MOST_KEPT_STREAMS, CupyAllocator
from plimsoll.torch.array_libraries.device_blocks import ANY_STREAM, DeviceBlock, Order, order_of
from plimsoll.torch.array_libraries.rmm_resources import RmmCallbacks
from tests.unit.array_stand_ins import (
    Cupy,
    CupyExternalStream,
    CupyOutOfMemoryError,
    CupyStream,
    Engines,
    NumbaApiError,
    RmmStream,
    numba_cuda,
)

MADE = 0x7F00  # a stream handle from another library


@pytest.fixture(params=["elastic", "native"])
def engines(request: pytest.FixtureRequest) -> Engines:
    return Engines(request.param)


class TestBlocks:
    @pytest.mark.parametrize(
        ("stream", "lasts", "order"),
        [
            (0, True, Order(0)),
            (1, True, Order(0)),  # 1 is the legacy default stream
            (2, True, Order(1, event_on=0)),  # 2 is the per-thread default stream
            (MADE, True, Order(MADE)),
            (MADE, False, Order(1, event_on=MADE)),
        ],
    )
    def test_only_streams_that_last_order_reuse(
        self, stream: int, lasts: bool, order: Order
    ) -> None:
        assert order_of(stream, lasts=lasts) == order

    def test_the_next_request_on_the_stream_gets_what_was_freed(self, engines: Engines) -> None:
        memory = engines.open(0)
        first = DeviceBlock(memory, Order(0), MiB)
        address = first.address
        engines.work(0)
        del first
        assert DeviceBlock(memory, Order(0), MiB).address == address

    @pytest.mark.parametrize("order", [ANY_STREAM, Order(1, event_on=MADE)])
    def test_memory_for_any_stream_is_not_lent_while_work_uses_it(
        self, engines: Engines, order: Order
    ) -> None:
        memory = engines.open(0)
        first = DeviceBlock(memory, order, MiB)
        address = first.address
        assert order.event_on is not None
        engines.work(order.event_on)
        first.free()
        assert engines.allocated() == 0
        assert engines.active() == MiB
        other = DeviceBlock(memory, order, MiB)
        assert other.address != address
        engines.finish()
        another = DeviceBlock(memory, order, 64 * MiB)
        assert engines.active() == 65 * MiB
        del other, another

    def test_giving_back_twice_is_giving_back_once(self, engines: Engines) -> None:
        block = DeviceBlock(engines.open(0), Order(0), MiB)
        block.free()
        block.free()
        assert engines.allocated() == 0

    def test_a_block_that_got_no_memory_gives_none_back(self, engines: Engines) -> None:
        with pytest.raises(_core.OutOfMemory, match=r"Tried to allocate 2\.00 GiB"):
            DeviceBlock(engines.open(0), Order(0), 2 * GiB)
        gc.collect()
        assert engines.allocated() == 0

    def test_an_engine_refuses_what_is_no_block(self, engines: Engines) -> None:
        memory = engines.open(0)
        with pytest.raises(ValueError, match="at least one byte"):
            memory.allocate(0, 0)
        for call in (memory.free, lambda address: memory.record_stream(address, 0)):
            with pytest.raises(_core.UnknownAddress):
                call(4096)


class TestCupy:
    @pytest.fixture
    def cupy(self) -> Cupy:
        return Cupy()

    @pytest.fixture
    def allocate(self, cupy: Cupy, engines: Engines) -> CupyAllocator:
        return CupyAllocator(cupy, engines)

    def test_an_array_has_memory_as_long_as_it_lives(
        self, allocate: CupyAllocator, engines: Engines
    ) -> None:
        pointer = allocate(5 * MiB)
        assert pointer.ptr % 256 == 0
        assert pointer.mem.size == 5 * MiB
        assert engines.allocated() == 5 * MiB
        del pointer
        assert engines.allocated() == 0

    def test_an_empty_array_has_none(self, allocate: CupyAllocator, engines: Engines) -> None:
        assert allocate(0).ptr == 0
        assert engines.opened() == {}

    def test_arrays_are_on_the_current_gpu(
        self, cupy: Cupy, allocate: CupyAllocator, engines: Engines
    ) -> None:
        here = allocate(MiB)
        cupy.device = 1
        there = allocate(2 * MiB)
        assert (here.mem.device_id, there.mem.device_id) == (0, 1)
        assert (engines.allocated(0), engines.allocated(1)) == (MiB, 2 * MiB)
        del here, there  # GPU 1 is current; the array on GPU 0 is freed too
        assert (engines.allocated(0), engines.allocated(1)) == (0, 0)

    def test_a_streams_memory_is_used_again_there_and_not_elsewhere(
        self, cupy: Cupy, allocate: CupyAllocator, engines: Engines
    ) -> None:
        cupy.stream = CupyStream(MADE)
        first = allocate(MiB)
        address = first.ptr
        engines.work(MADE)
        del first
        cupy.stream = CupyStream(0)
        on_another = allocate(MiB)
        cupy.stream = CupyStream(MADE)
        on_the_same = allocate(MiB)
        assert on_another.ptr != address
        assert on_the_same.ptr == address

    def test_streams_that_it_allocates_on_are_kept_but_not_any_number(
        self, cupy: Cupy, allocate: CupyAllocator
    ) -> None:
        streams = []
        for number in range(MOST_KEPT_STREAMS + 5):
            cupy.stream = CupyStream(MADE + number)
            streams.append(weakref.ref(cupy.stream))
            allocate(MiB)
        cupy.stream = CupyStream(0)
        gc.collect()
        assert [stream() is not None for stream in streams] == [
            *[True] * MOST_KEPT_STREAMS,
            *[False] * 5,
        ]

    @pytest.mark.parametrize(
        "made",
        [
            lambda: CupyExternalStream(MADE),
            # a CuPy stream object that does not own its stream
            lambda: CupyStream.from_external(RmmStream(MADE)),
        ],
        ids=["ExternalStream", "from_external"],
    )
    def test_a_stream_of_somebody_else_lives_as_long_as_its_arrays(
        self, cupy: Cupy, allocate: CupyAllocator, engines: Engines, made: Callable[[], object]
    ) -> None:
        cupy.stream = made()
        stream = weakref.ref(cupy.stream)
        pointer = allocate(MiB)
        engines.work(MADE)
        cupy.stream = CupyStream(0)
        gc.collect()
        assert stream() is not None
        del pointer
        assert stream() is None
        assert engines.allocated() == 0
        assert engines.active() == MiB  # the stream's work on the array is not done

    def test_a_failure_is_cupys_error_with_pytorchs_text(
        self, allocate: CupyAllocator, engines: Engines
    ) -> None:
        with pytest.raises(CupyOutOfMemoryError, match=r"Tried to allocate 2\.00 GiB") as failure:
            allocate(2 * GiB)
        again = pickle.loads(pickle.dumps(failure.value))
        assert str(again) == f"CuPy's own text of {2 * GiB}"
        assert engines.allocated() == 0

    def test_arrays_in_circles_are_collected_before_a_request_fails(
        self, allocate: CupyAllocator
    ) -> None:
        gc.disable()
        try:
            circle: list[Any] = [allocate(700 * MiB)]
            circle.append(circle)
            del circle
            assert allocate(700 * MiB).ptr
        finally:
            gc.enable()


@dataclass
class QueuedWork:
    """Work in a stream's queue: the addresses that the work uses, and when the work ends."""

    stream: int
    start: int
    end: int
    done_at: float


class TestReuse:
    """Tests that no address is reused while another stream's queued work still uses it."""

    @pytest.mark.parametrize("seed", range(6))
    def test_what_is_lent_is_idle_or_of_the_same_stream(self, engines: Engines, seed: int) -> None:
        random = Random(seed)
        cupy = Cupy()
        allocate = CupyAllocator(cupy, engines)
        lasting = [CupyStream(number) for number in (0, MADE, MADE + 1)]
        arrays: list[tuple[Any, int, int]] = []
        queued: list[QueuedWork] = []
        ends: dict[int, float] = {}  # when each stream's queued work is done
        waits = reuses = 0
        for step in range(600):
            passing = CupyExternalStream(MADE + 1000 + step % 5)
            stream: Any = random.choice([*lasting, passing])
            if random.random() < 0.45 and arrays:
                arrays.pop(random.randrange(len(arrays)))
            else:
                size = random.choice([512, 4000, MiB, 3 * MiB, 40 * MiB])
                cupy.stream = stream
                try:
                    pointer = allocate(size)
                except CupyOutOfMemoryError:
                    arrays.clear()
                    continue
                # Read the clock now: the allocation may have waited for work.
                now = engines.now()
                start, end = pointer.ptr, pointer.ptr + size
                for work in queued:
                    if work.start < end and start < work.end and work.done_at > now:
                        assert work.stream == stream.ptr
                        reuses += 1
                arrays.append((pointer, size, stream.ptr))
                duration = random.choice([1e3, 1e6, 1e8])
                begun = max(ends.get(stream.ptr, 0.0), now)
                ends[stream.ptr] = begun + duration * 1e-9
                engines.work(stream.ptr, duration_ns=duration)
                queued.append(QueuedWork(stream.ptr, start, end, ends[stream.ptr]))
            if random.random() < 0.1:
                engines.advance(random.choice([1e-6, 1e-3, 0.05]))
                waits += 1
        assert waits > 0
        assert reuses > 0


class TestNumba:
    @pytest.fixture
    def manager(self, engines: Engines) -> Any:
        context = SimpleNamespace(device=SimpleNamespace(id=1))
        return numba_arrays.manager_type(numba_cuda(), engines)(context=context)

    def test_an_array_has_memory_on_its_contexts_gpu(self, manager: Any, engines: Engines) -> None:
        pointer = manager.memalloc(3 * MiB)
        assert pointer.pointer.value % 256 == 0
        assert pointer.size == 3 * MiB
        assert engines.allocated(1) == 3 * MiB
        del pointer
        assert engines.allocated(1) == 0

    def test_memory_is_kept_until_the_work_of_all_streams_is_done(
        self, manager: Any, engines: Engines
    ) -> None:
        pointer = manager.memalloc(3 * MiB)
        engines.work(0, device=1)
        pointer.free()
        assert engines.allocated(1) == 0
        assert engines.active(1) == 3 * MiB

    def test_freeing_is_possible_after_numba_has_forgotten_its_contexts(
        self, engines: Engines
    ) -> None:
        context = SimpleNamespace(device=SimpleNamespace(id=0))
        pointer = numba_arrays.manager_type(numba_cuda(), engines)(context=context).memalloc(1)
        del context
        gc.collect()
        pointer.free()
        assert engines.allocated() == 0

    def test_an_empty_array_has_an_address(self, manager: Any) -> None:
        assert manager.memalloc(0).pointer.value

    def test_a_failure_is_numbas_error_with_pytorchs_text(self, manager: Any) -> None:
        with pytest.raises(NumbaApiError, match=r"Tried to allocate 2\.00 GiB") as failure:
            manager.memalloc(2 * GiB)
        assert failure.value.code == 2

    def test_it_says_what_the_card_has(self, manager: Any) -> None:
        manager.initialize()
        assert manager.interface_version == 1
        free, total = manager.get_memory_info()
        assert 0 < free <= total == GiB

    def test_handles_for_other_processes_need_whole_allocations(
        self, manager: Any, engines: Engines
    ) -> None:
        if engines.allocator == "native":
            assert manager.get_ipc_handle("memory") == ("a handle", "memory")
            return
        with pytest.raises(InputError, match="do not reach the elastic allocator's memory"):
            manager.get_ipc_handle("memory")


class TestRmm:
    @pytest.fixture
    def callbacks(self, engines: Engines) -> RmmCallbacks:
        return RmmCallbacks(engines, 1)

    def test_buffers_are_made_and_freed_on_their_gpu(
        self, callbacks: RmmCallbacks, engines: Engines
    ) -> None:
        address = callbacks.allocate(2 * MiB, RmmStream(0))
        assert address % 256 == 0
        assert engines.allocated(1) == 2 * MiB
        callbacks.deallocate(address, 2 * MiB, RmmStream(1))
        assert engines.allocated(1) == engines.active(1) == 0

    @pytest.mark.parametrize("stream", [0, MADE])
    def test_memory_is_kept_until_the_stream_where_it_was_freed_is_done(
        self, callbacks: RmmCallbacks, engines: Engines, stream: int
    ) -> None:
        address = callbacks.allocate(2 * MiB, RmmStream(MADE))
        engines.work(stream, device=1)
        callbacks.deallocate(address, 2 * MiB, RmmStream(stream))
        assert engines.allocated(1) == 0
        assert engines.active(1) == 2 * MiB

    def test_the_default_streams_memory_is_used_again_at_once(
        self, callbacks: RmmCallbacks, engines: Engines
    ) -> None:
        address = callbacks.allocate(2 * MiB, RmmStream(0))
        engines.work(0, device=1)
        callbacks.deallocate(address, 2 * MiB, RmmStream(0))
        assert callbacks.allocate(2 * MiB, RmmStream(0)) == address

    def test_nothing_has_no_address(self, callbacks: RmmCallbacks, engines: Engines) -> None:
        assert callbacks.allocate(0, RmmStream(0)) == 0
        callbacks.deallocate(0, 0, RmmStream(0))
        assert engines.opened() == {}

    def test_a_failure_is_a_memory_error_with_pytorchs_text(self, callbacks: RmmCallbacks) -> None:
        with pytest.raises(MemoryError, match=r"Tried to allocate 2\.00 GiB"):
            callbacks.allocate(2 * GiB, RmmStream(0))

    def test_what_cannot_be_freed_is_told_and_not_raised(
        self, callbacks: RmmCallbacks, capsys: pytest.CaptureFixture[str]
    ) -> None:
        callbacks.deallocate(4096, 1, RmmStream(0))
        assert "plimsoll: memory of GPU 1 could not be freed: " in capsys.readouterr().err
