"""Tests how far peaks vary if blocks wait for other streams and the host's speed varies."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll import Allocator, OutOfMemoryError, SimulatedMachine
from plimsoll.base.units import GiB, MiB
from plimsoll.prediction.assumed import ANY_ADDRESSES, FREE_LATER
from plimsoll.prediction.child.caught_failures import share_try
from plimsoll.prediction.child.uncertain_peaks import (
    UncertainPeaks,
    _Draw,
    _draws,
    _Run,
    uncertain_peaks,
)


class Job:
    """An allocator, and a stand-in for the parts of a simulation that `uncertain_peaks` reads."""

    def __init__(
        self, *, of_job: bool = True, sends: bool = False, version: str | None = None
    ) -> None:
        machine = SimulatedMachine([16 * GiB])
        self.gpu = machine.gpus[0]
        self.allocator = Allocator(self.gpu, version=version)
        self.allocator.record_memory_history()
        self.simulation: Any = SimpleNamespace(
            allocators=[self.allocator],
            version=tuple(map(int, self.allocator.version.split("."))),
            communicators=SimpleNamespace(most={0: None} if of_job else {}),
            groups_with_sends=[[0, 1]] if sends else [],
            library=SimpleNamespace(uncertain_memory=list),
            site_stacks=lambda: [self.stack],
        )
        self.stack: list[tuple[str, int, str]] = []

    def bucket(self, size: int, work: float = 0.01) -> None:
        """Allocates memory, starts work with it on NCCL's stream, and frees it without waiting."""
        block = self.allocator.malloc(size)
        self.allocator.record_stream(block, 7)
        self.gpu.launch(7, work)
        self.allocator.free(block)

    def range(self) -> UncertainPeaks:
        stats = self.allocator.memory_stats()
        peak: Any = SimpleNamespace(
            allocated_bytes=stats["allocated_bytes.all.peak"],
            reserved_bytes=stats["reserved_bytes.all.peak"],
        )
        return uncertain_peaks(self.simulation, 0, peak, 16 * GiB)


def test_the_last_draws_of_sizes_follow_the_estimates_least() -> None:
    memory: Any = [SimpleNamespace(kind=n, bytes=1, least=0, most=1000) for n in range(2000)]
    least, most, *drawn = (np.array(list(draw.values())) for draw in _draws(memory, 50))
    assert (least.max(), most.min(), len(drawn)) == (0, 1000, 50)
    shares = [float((draw == 1).mean()) for draw in drawn]
    assert 0.8 < shares[0] < 0.9
    assert 0.45 < shares[-1] < 0.55
    assert len(list(_draws(memory, 0))) == 2


def test_blocks_that_wait_for_another_stream_make_a_range_of_what_is_reserved() -> None:
    job = Job()
    for _ in range(4):
        job.bucket(100 * MiB)
        job.allocator.free(job.allocator.malloc(100 * MiB))
    job.gpu.synchronize()
    job.bucket(100 * MiB)
    found = job.range()
    assert found.allocated is None
    assert found.depends_on == (FREE_LATER,)
    assert found.reserved is not None
    least, most = found.reserved
    assert least == 100 * MiB  # the peak if each block is free again before the next request
    assert most >= job.allocator.memory_stats()["reserved_bytes.all.peak"] >= 200 * MiB


def test_the_rest_of_a_block_that_is_not_split_makes_a_range_of_what_is_allocated() -> None:
    job = Job()
    job.allocator.free(job.allocator.malloc(64 * MiB))
    job.allocator.malloc(31 * MiB)
    job.bucket(33 * MiB)  # the rest of the 64 MiB
    # The bucket still waits, so this gets a new segment. A bucket that is free again would be
    # taken whole, because PyTorch does not split off the last 1 MiB.
    job.allocator.malloc(32 * MiB)
    job.gpu.synchronize()
    job.allocator.malloc(100 * MiB)
    found = job.range()
    assert found.allocated == (163 * MiB, 164 * MiB)
    assert found.depends_on == (FREE_LATER,)


def test_without_blocks_that_wait_there_is_one_figure() -> None:
    job = Job()
    for _ in range(4):
        job.allocator.free(job.allocator.malloc(100 * MiB))
    assert job.range() == UncertainPeaks()


def test_the_order_of_addresses_makes_a_range_where_equal_blocks_are_free() -> None:
    def run(job: Job) -> UncertainPeaks:
        used = []
        for _ in range(2):  # makes a segment with 120 MiB used and 80 MiB free
            job.allocator.free(job.allocator.malloc(200 * MiB))
            used.append(job.allocator.malloc(120 * MiB))
        job.allocator.malloc(80 * MiB)  # goes to the segment with the lower address
        # This frees the whole first segment, unless the 80 MiB block is in it.
        job.allocator.free(used[0])
        job.allocator.malloc(200 * MiB)
        return job.range()

    found = run(Job(version="2.11"))
    assert found.depends_on == (ANY_ADDRESSES,)
    assert found.reserved == (400 * MiB, 600 * MiB)
    assert run(Job(of_job=False, version="2.11")) == UncertainPeaks()
    # If free blocks have equal sizes, PyTorch 2.12 takes the oldest, whatever its address.
    assert run(Job(version="2.12")) == UncertainPeaks()


def test_only_jobs_have_such_a_range() -> None:
    job = Job(of_job=False)
    for _ in range(4):
        job.bucket(100 * MiB)
    assert job.range() == UncertainPeaks()


@given(
    st.lists(
        st.tuples(
            st.integers(1, 40), st.booleans(), st.sampled_from((0.0, 0.001, 0.01)), st.booleans()
        ),
        max_size=40,
    ),
    st.lists(st.sampled_from((0.0, 1.0, 3.0, 10.0)), min_size=40, max_size=40),
)
def test_any_run_replays_as_it_was_and_at_any_pace(
    requests: list[tuple[int, bool, float, bool]], paces: list[float]
) -> None:
    job, kept = Job(), list[int]()
    for size, is_shared, work, is_kept in requests:
        if is_shared:
            job.bucket(size * MiB, work)
        else:
            kept.append(job.allocator.malloc(size * MiB))
        if not is_kept and kept:
            job.allocator.free(kept.pop(0))
        if work:
            job.gpu.machine.advance(work / 2)
    stats = job.allocator.memory_stats()
    run = _Run(job.simulation, 0, [], waits=True)
    as_it_was = run.replay(_Draw({}))
    assert as_it_was.allocated_bytes == stats["allocated_bytes.all.peak"]
    assert as_it_was.reserved_bytes == stats["reserved_bytes.all.peak"]
    other = run.replay(_Draw({}, np.array(paces[: run.late_frees])))
    rounding = len(requests) * MiB  # a reused block may be up to 1 MiB larger than its request
    assert abs(other.allocated_bytes - as_it_was.allocated_bytes) <= rounding
    assert other.reserved_bytes >= other.allocated_bytes


TRIES = """try:
    ask()
except MemoryError:
    pass
ask()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Returns a script whose line 2 is under a `try`, while line 5 is not."""
    path = tmp_path / "script.py"
    path.write_text(TRIES)
    return path


def _after_a_caught_failure(
    script: Path, taken_later: int, failures: int = 1, line: int = 2
) -> UncertainPeaks:
    """A program whose every fourth request fails. It takes `taken_later` at the end.

    All requests come from a line of the script. The program frees all after each failure.
    Kernels take at most 2 GiB beside each third block, and at most 2 GiB beside the last one.
    """
    job = Job(of_job=False)
    job.stack = [(str(script), line, "<module>")]
    kernels = [
        SimpleNamespace(
            device=0, kind=1, stream=0, bytes=0, least=0, most=2 * GiB, frees=0, allocations=count
        )
        for count in (*range(3, 3 * failures + 1, 3), 3 * failures + 1)
    ]
    job.simulation.library.uncertain_memory = lambda: kernels
    for _ in range(failures):
        kept = [job.allocator.malloc(5 * GiB) for _ in range(3)]
        with pytest.raises(OutOfMemoryError):
            job.allocator.malloc(5 * GiB)
        for block in kept:
            job.allocator.free(block)
    job.allocator.empty_cache()
    job.allocator.malloc(taken_later)
    return job.range()


def test_a_program_that_catches_a_failed_request_may_see_it_fail_earlier(script: Path) -> None:
    found = _after_a_caught_failure(script, 4 * GiB)
    assert found.fails_with is None
    assert found.reserved is not None
    assert found.reserved[1] <= 16 * GiB


def test_a_request_outside_the_try_may_fail_without_being_caught(script: Path) -> None:
    assert _after_a_caught_failure(script, 4 * GiB, line=5).fails_with is not None


def test_a_request_after_the_caught_failures_may_fail_by_itself(script: Path) -> None:
    assert _after_a_caught_failure(script, 15 * GiB).fails_with is not None


def test_only_some_caught_failures_are_moved(script: Path) -> None:
    assert _after_a_caught_failure(script, 4 * GiB, failures=8).fails_with is None
    assert _after_a_caught_failure(script, 4 * GiB, failures=9).fails_with is not None


LOOP = """import contextlib
def step(batch):
    model(batch)
    loss(batch)
for batch in batches:
    try:
        step(batch)
        step(batch)
    except MemoryError:
        step(None)
for batch in batches:
    step(batch)
with contextlib.suppress(MemoryError):
    step(None)
    step(None)
"""


@pytest.mark.parametrize(
    ("earlier", "failed", "shared"),
    [
        ([3, 7], [4, 8], True), ([3, 7], [3, 7], True), ([3, 14], [4, 15], True),
        ([3, 12], [3, 7], False), ([3, 10], [3, 7], False), ([3, 12], [4, 12], False),
    ],
)  # fmt: skip
def test_two_requests_share_a_try_if_it_is_around_both(
    tmp_path: Path, earlier: list[int], failed: list[int], shared: bool
) -> None:
    path = tmp_path / "loop.py"
    path.write_text(LOOP)
    stacks = [
        [(str(path), inner, "step"), (str(path), outer, "<module>")]
        for inner, outer in (earlier, failed)
    ]
    assert share_try(*stacks) is shared


def test_without_the_source_no_try_is_known(tmp_path: Path) -> None:
    stack = [(str(tmp_path / "missing.py"), 1, "<module>")]
    assert not share_try(stack, stack)
