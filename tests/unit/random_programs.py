"""Random programs on an allocator, as data: hypothesis makes them, `Program` runs them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from hypothesis import strategies as st

from plimsoll import OutOfMemoryError
from plimsoll.base.units import MiB

if TYPE_CHECKING:
    from plimsoll import Allocator, MemoryPool


T = TypeVar("T")


@dataclass(frozen=True)
class Malloc:
    size: int
    stream: int = 0
    pool: int | None = None


@dataclass(frozen=True)
class Free:
    """Frees one of the live allocations.

    Attributes:
        which: The allocation's index is `which` modulo the number of live allocations.
    """

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

SIZES = st.one_of(
    st.floats(0, 26.6).map(lambda exponent: int(2**exponent)),
    st.integers(1, 60 * MiB),
    st.sampled_from([512, 513, MiB, MiB + 1, 10 * MiB - 1, 10 * MiB, 20 * MiB, 64 * MiB]),
)
STREAMS = st.integers(0, 3)
POOLS = st.integers(0, 1)
WHICH = st.integers(0, 30)
SECONDS = st.sampled_from([1e-4, 1e-3, 1e-2])


def weighted(*choices: tuple[int, st.SearchStrategy[T]]) -> st.SearchStrategy[T]:
    """Chooses one of these strategies, each as often as its weight says."""
    by_weight = [strategy for weight, strategy in choices for _ in range(weight)]
    return st.integers(0, len(by_weight) - 1).flatmap(by_weight.__getitem__)


def steps(*, pools: bool = False, empty_cache: bool = False) -> st.SearchStrategy[Step]:
    """Returns a strategy for one step of a program."""
    pool = st.none() | POOLS if pools else st.none()
    return weighted(
        (8, st.builds(Malloc, SIZES, STREAMS, pool)),
        (5, st.builds(Free, WHICH)),
        (1, st.builds(RecordStream, WHICH, STREAMS)),
        (1, st.builds(Launch, STREAMS, SECONDS)),
        (1, st.builds(Advance, SECONDS)),
        (int(pools), st.builds(ReleasePool, POOLS)),
        (int(empty_cache), st.just(EmptyCache())),
    )


@dataclass
class Program:
    """A running program; it skips requests that fail."""

    allocator: Allocator
    live: list[int] = field(default_factory=list)
    pools: dict[int, MemoryPool] = field(default_factory=dict)

    def run(self, steps: list[Step]) -> None:
        for step in steps:
            self.step(step)

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
            if step.pool is None:
                self.live.append(self.allocator.malloc(step.size, stream=step.stream))
                return
            if step.pool not in self.pools:
                self.pools[step.pool] = self.allocator.make_pool()
            with self.allocator.use_pool(self.pools[step.pool]):
                self.live.append(self.allocator.malloc(step.size, stream=step.stream))
        except OutOfMemoryError:
            pass
