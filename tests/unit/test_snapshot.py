"""Snapshots are what PyTorch writes: its viewer reads them, and they replay to the address."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll import Allocator, InputError, SimulatedGpu, replay
from plimsoll.trace.files import read_snapshot
from tests.unit.programs import Program, Step, steps

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CONFS = [
    "",
    "max_split_size_mb:64",
    "roundup_power2_divisions:4",
    "expandable_segments:True",
    "expandable_segments:True,roundup_power2_divisions:8",
    "max_split_size_mb:32,max_non_split_rounding_mb:40",
]


def recorded(conf: str, program: list[Step], gpu: str = "4GiB") -> dict[str, Any]:
    allocator = Allocator(SimulatedGpu(gpu), conf=conf)
    allocator.record_memory_history()
    Program(allocator).run(program)
    return allocator.memory_snapshot()


def visited() -> dict[str, Any]:
    """A snapshot with all that a viewer may meet."""
    allocator = Allocator(SimulatedGpu("1GiB"))
    allocator.record_memory_history(stacks=True)
    kept = [allocator.malloc(size) for size in (1, 4096, 3 << 20, 90 << 20, 12 << 20)]
    allocator.record_stream(kept[2], 7)
    allocator.gpu.launch(7, seconds=1)
    allocator.free(kept[2])
    allocator.free(kept[3])
    allocator.empty_cache()
    with allocator.use_pool(allocator.make_pool()):
        allocator.malloc("2MiB")
    return allocator.memory_snapshot()


def _compared(viewer: Any, segments: list[dict[str, Any]]) -> Any:
    return viewer.compare(segments[:1], segments, format_flamegraph=str)


VIEWS: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "segsum": lambda viewer, snapshot: viewer.segsum(snapshot),
    "trace": lambda viewer, snapshot: viewer.trace(snapshot),
    # Drawn by a script that the viewer would fetch; the text it is given is made here.
    "memory": lambda viewer, snapshot: viewer.memory(snapshot, format_flamegraph=str),
    "segments": lambda viewer, snapshot: viewer.segments(snapshot, format_flamegraph=str),
    "compare": lambda viewer, snapshot: _compared(viewer, snapshot["segments"]),
    "trace_plot": lambda viewer, snapshot: viewer.trace_plot(snapshot),
    "segment_plot": lambda viewer, snapshot: viewer.segment_plot(snapshot),
}


@pytest.mark.parametrize("view", VIEWS)
def test_torchs_viewer_reads_it(view: str) -> None:
    viewer = pytest.importorskip("torch.cuda._memory_viz")
    snapshot = pickle.loads(pickle.dumps(visited()))
    assert VIEWS[view](viewer, snapshot)


@pytest.mark.parametrize("conf", CONFS)
@given(program=st.lists(steps(), min_size=1, max_size=60))
def test_what_the_engine_records_replays_to_the_address(conf: str, program: list[Step]) -> None:
    snapshot = recorded(conf, program)
    if not snapshot["device_traces"][0]:
        return
    (result,) = replay(read_snapshot(pickle.dumps(snapshot)))
    assert result.first_difference is None
    if any(event["action"] == "alloc" for event in snapshot["device_traces"][0]):
        assert result.matches_recording is True


@given(program=st.lists(steps(), min_size=20, max_size=80), kept=st.integers(1, 60))
def test_a_ring_that_overflowed_still_replays(program: list[Step], kept: int) -> None:
    allocator = Allocator(SimulatedGpu("4GiB"), conf="expandable_segments:True")
    allocator.record_memory_history(max_entries=kept)
    Program(allocator).run(program)
    snapshot = allocator.memory_snapshot()
    if snapshot["device_traces"][0]:
        (result,) = replay(read_snapshot(pickle.dumps(snapshot)))
        assert result.matches_recording is not False


def test_stacks_name_the_line_that_asked() -> None:
    trace = visited()["device_traces"][0]
    assert trace[0]["frames"][0]["filename"] == __file__
    assert trace[0]["frames"][0]["name"] in ("visited", "<listcomp>")


def test_a_snapshot_file_is_never_overwritten(tmp_path: Path) -> None:
    allocator = Allocator(SimulatedGpu("1GiB"))
    allocator.record_memory_history()
    allocator.malloc(1)
    path = tmp_path / "snapshot.pickle"
    allocator.dump_snapshot(path)
    before = path.read_bytes()
    with pytest.raises(InputError, match="exists already"):
        allocator.dump_snapshot(path)
    assert path.read_bytes() == before
    assert replay(path)[0].matches_recording is True
