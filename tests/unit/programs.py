"""Random programs on an allocator, as data: hypothesis makes them, `run` carries them out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from plimsoll import OutOfMemoryError
from plimsoll.units import MiB

if TYPE_CHECKING:
    from plimsoll import Allocator, MemoryPool

SIZES = st.one_of(
    st.floats(0, 26.6).map(lambda exponent: int(2**exponent)),
    st.integers(1, 60 * MiB),
    st.sampled_from([512, 513, MiB, MiB + 1, 10 * MiB - 1, 10 * MiB, 40 * MiB, 64 * MiB]),
)
STREAMS = st.integers(0, 3)
SECONDS = st.sampled_from([1e-4, 1e-3, 1e-2])


@dataclass(frozen=True)
class Malloc:
    size: int
    stream: int = 0
    pool: int = 0  # 0: none


@dataclass(frozen=True)
class Free:
    which: int


@dataclass(frozen=True)
class RecordStream:
    which: int
    stream: int


@dataclass(frozen=True)
class Launch:
    stream: int
    seconds: float


@dataclass(frozen=True)
class Advance:
    seconds: float


@dataclass(frozen=True)
class EmptyCache:
    pass


@dataclass(frozen=True)
class ReleasePool:
    pool: int


Step = Malloc | Free | RecordStream | Launch | Advance | EmptyCache | ReleasePool
WHICH = st.integers(0, 30)


def steps(
    *, streams: bool = True, pools: bool = True, empty_cache: bool = True
) -> st.SearchStrategy[Step]:
    """One step of a program that uses only these features."""
    stream = STREAMS if streams else st.just(0)
    pool = st.sampled_from([0, 0, 0, 1, 2]) if pools else st.just(0)
    kinds: list[st.SearchStrategy[Step]] = [st.builds(Malloc, SIZES, stream, pool)] * 3
    kinds += [st.builds(Free, WHICH)] * 2
    if streams:
        kinds += [
            st.builds(RecordStream, WHICH, STREAMS),
            st.builds(Launch, STREAMS, SECONDS),
            st.builds(Advance, SECONDS),
        ]
    if pools:
        kinds.append(st.builds(ReleasePool, st.integers(1, 2)))
    if empty_cache:
        kinds.append(st.just(EmptyCache()))
    return st.one_of(kinds)


@dataclass
class _Run:
    allocator: Allocator
    live: list[int] = field(default_factory=list)
    pools: dict[int, MemoryPool] = field(default_factory=dict)

    def step(self, step: Step) -> None:
        match step:
            case Malloc():
                self.malloc(step)
            case Free(which) if self.live:
                self.allocator.free(self.live.pop(which % len(self.live)))
            case RecordStream(which, stream) if self.live:
                self.allocator.record_stream(self.live[which % len(self.live)], stream)
            case Launch(stream, seconds):
                self.allocator.gpu.launch(stream, seconds)
            case Advance(seconds):
                self.allocator.gpu.machine.advance(seconds)
            case EmptyCache():
                self.allocator.empty_cache()
            case ReleasePool(pool) if pool in self.pools:
                self.pools.pop(pool).release()

    def malloc(self, step: Malloc) -> None:
        try:
            if step.pool == 0:
                self.live.append(self.allocator.malloc(step.size, stream=step.stream))
                return
            if step.pool not in self.pools:
                self.pools[step.pool] = self.allocator.make_pool()
            with self.allocator.use_pool(self.pools[step.pool]):
                self.live.append(self.allocator.malloc(step.size, stream=step.stream))
        except OutOfMemoryError:
            pass


def run(allocator: Allocator, program: list[Step]) -> None:
    """Carry a program out; requests that fail are left out."""
    state = _Run(allocator)
    for step in program:
        state.step(step)
