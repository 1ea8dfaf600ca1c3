"""Tests recordings with a limit: the sizes, the contents and the notes of both files."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from plimsoll import Allocator, InputError, SimulatedGpu, _core, explain, replay, write_parquet
from plimsoll.engine.recorder import parts, recorder
from plimsoll.engine.recorder.allocator_events import AllocatorEvents
from plimsoll.engine.recorder.event_source import Segments
from plimsoll.explanation.ranks.rank_files import recordings_in
from plimsoll.recordings.analysis.block_history import find_lifetimes
from plimsoll.recordings.analysis.lifetimes import Lifetimes
from plimsoll.recordings.checks import check_settings
from plimsoll.recordings.earlier import Earlier
from plimsoll.recordings.reading import read_recording
from plimsoll.torch.session import record as session
from plimsoll.torch.session.record import record
from tests.recordings import ROOT
from tests.waiting import wait_for

LIMIT = 100_000
PROGRAM = ROOT / "tests" / "programs" / "recorder" / "limited.py"


@pytest.fixture
def allocator() -> Allocator:
    return Allocator(SimulatedGpu("8GiB"))


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_LEAST_LIMIT", 1)
    monkeypatch.setattr(recorder, "INTERVAL_SECONDS", 1000)  # the tests write by `flush`


def churn(allocator: Allocator, rounds: int = 500) -> None:
    for number in range(rounds):
        allocator.free(allocator.malloc(997 * number + 1))


def kept_by_this_line(allocator: Allocator) -> int:
    return allocator.malloc(1 << 20)


def record_long(allocator: Allocator, path: Path, writes: int = 60) -> tuple[int, list[int]]:
    """Records events that take several times the limit.

    Returns the number of events, and the total size of the files after each write.
    """
    sizes = []
    with record(path, allocator=allocator, limit=LIMIT) as recording:
        kept_by_this_line(allocator)
        recording._label(0, kept_by_this_line(allocator), "parameters")
        recording._follows_steps = True
        recording._label(0, kept_by_this_line(allocator), "parameters")
        for _ in range(writes):
            churn(allocator)
            recording.mark()
            recording.flush()
            sizes.append(sum(each.stat().st_size for each in path.parent.iterdir()))
        recording._follows_steps = False
    return recording.event_count, sizes


def test_both_files_together_keep_the_limit(allocator: Allocator, tmp_path: Path) -> None:
    _, sizes = record_long(allocator, tmp_path / "run.plim")
    assert {each.name for each in tmp_path.iterdir()} == {"run.plim", "run.earlier.plim"}
    assert LIMIT / 2 < max(sizes) <= LIMIT


def test_each_part_opens_alone_and_says_what_is_not_in_it(
    allocator: Allocator, tmp_path: Path
) -> None:
    count, _ = record_long(allocator, tmp_path / "run.plim")
    before, newest = (read_recording(tmp_path / name) for name in ("run.earlier.plim", "run.plim"))
    assert before.earlier is not None
    assert newest.earlier is not None
    assert before.is_whole
    assert newest.is_whole
    between = before.earlier.event_count + before.devices[0].event_count
    assert newest.earlier.event_count == between
    assert between + newest.devices[0].event_count == count
    assert 0 < before.earlier.seconds <= newest.earlier.seconds  # of a simulated clock
    assert newest.earlier.uncertain_blocks == before.earlier.uncertain_blocks == 0
    assert newest.problems == [
        f"the first {newest.earlier.seconds:.0f} s ({between:,} events) are not in this file: the "
        "recording has a limit"
    ]
    for part in (before, newest):
        assert {mark.name for mark in part.marks} == {"step"}
        (result,) = replay(part)
        assert result.matches_recording is True


def without_stacks(
    segments: Callable[[AllocatorEvents], Segments],
) -> Callable[[AllocatorEvents], Segments]:
    """Wraps `segments` so that it returns no call stacks, like `TorchEvents.segments`."""

    def plain(events: AllocatorEvents) -> Segments:
        return {
            device: [
                _core.SegmentInfo(
                    one.address, one.total_size, one.stream, one.pool, one.small, one.expandable, 0,
                    [_core.BlockInfo(b.address, b.size, b.requested, b.state) for b in one.blocks],
                )
                for one in of
            ]
            for device, of in segments(events).items()
        }  # fmt: skip

    return plain


def older_blocks(path: Path) -> Lifetimes:
    found = find_lifetimes(read_recording(path).devices[0])
    return found[found.start == -1]


@pytest.mark.parametrize("name", ["run.earlier.plim", "run.plim", "run.parquet"])
def test_a_part_knows_the_lines_of_blocks_that_are_older(
    name: str, allocator: Allocator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AllocatorEvents, "segments", without_stacks(AllocatorEvents.segments))
    record_long(allocator, tmp_path / "run.plim")
    if name == "run.parquet":
        write_parquet(read_recording(tmp_path / "run.plim"), tmp_path / name)
    recording = read_recording(tmp_path / name)
    older = older_blocks(tmp_path / name)
    frames = [recording.devices[0].frames(stack)[0] for stack in older.stack.tolist()]
    assert [frame[2] for frame in frames] == ["kept_by_this_line"] * 3
    (label,) = recording.labels
    assert (label.event, label.category) == (0, "parameters")
    assert label.address in older.address.tolist()
    assert recording.earlier is not None


def test_a_part_is_explained_with_what_is_not_in_it(allocator: Allocator, tmp_path: Path) -> None:
    record_long(allocator, tmp_path / "run.plim")
    explained = explain(tmp_path / "run.plim", advice=False)
    assert any("are not in this file: the recording has a limit" in n for n in explained.notes)


def test_a_short_recording_has_one_whole_file(allocator: Allocator, tmp_path: Path) -> None:
    with record(tmp_path / "run.plim", allocator=allocator, limit="1GiB"):
        churn(allocator)
    assert [each.name for each in tmp_path.iterdir()] == ["run.plim"]
    assert read_recording(tmp_path / "run.plim").problems == []


def test_losses_are_told_by_the_part_that_has_them(
    allocator: Allocator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "_CAPACITY", 2000)
    recording = record(tmp_path / "run.plim", allocator=allocator, limit=LIMIT).__enter__()
    churn(allocator, 1000)
    recording.flush()
    lost = recording.dropped
    while not (tmp_path / "run.earlier.plim").exists():
        churn(allocator)
        recording.flush()
    with pytest.warns(RuntimeWarning, match=f"{lost:,} events were lost"):
        recording.stop()
    assert lost > 0
    assert read_recording(tmp_path / "run.earlier.plim").dropped == lost
    assert read_recording(tmp_path / "run.plim").dropped == 0


def test_a_picture_that_the_program_outran_is_said(
    allocator: Allocator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with record(tmp_path / "run.plim", allocator=allocator, limit=LIMIT) as recording:
        segments = recording._source.segments

        def late() -> object:
            found = segments()
            allocator.malloc(512)
            allocator.engine.note_snapshot()
            return found

        monkeypatch.setattr(recording._source, "segments", late)
        while not (tmp_path / "run.earlier.plim").exists():
            churn(allocator)
            recording.flush()
        monkeypatch.setattr(recording._source, "segments", segments)
    newest = read_recording(tmp_path / "run.plim")
    assert newest.earlier is not None
    assert newest.earlier.uncertain_blocks == 1
    assert "1 block may be wrong at its beginning" in newest.problems[1]


def has_both(folder: Path) -> bool:
    return len(list(folder.glob("*.plim"))) == 2


def inode(folder: Path) -> int:
    return (folder / "run.earlier.plim").stat().st_ino


def has_changed(folder: Path, first: int) -> bool:
    return inode(folder) != first


@pytest.mark.parametrize("more", [0, 1, 3])
def test_a_killed_program_leaves_files_that_open(more: int, tmp_path: Path) -> None:
    path = tmp_path / "run.plim"
    command = [sys.executable, str(PROGRAM), str(path), str(LIMIT)]
    with subprocess.Popen(command) as child:
        wait_for(lambda: has_both(tmp_path))
        for _ in range(more):
            first = inode(tmp_path)
            wait_for(partial(has_changed, tmp_path, first))
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    before = read_recording(tmp_path / "run.earlier.plim")
    assert before.is_whole
    assert replay(before)[0].matches_recording is True
    if path.exists() and path.stat().st_size > 20_000:  # its first events may not be there yet
        newest = read_recording(path)
        assert newest.earlier is not None
        assert not newest.is_whole


@pytest.mark.parametrize("limit", ["15MiB", 1, "-1GiB", "many"])
def test_a_limit_that_is_none_is_refused(
    limit: int | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    with pytest.raises(InputError, match=r"at least 16\.00 MiB|not a size"):
        record(tmp_path / "run.plim", limit=limit)


def test_an_earlier_part_is_not_overwritten(allocator: Allocator, tmp_path: Path) -> None:
    (tmp_path / "run.earlier.plim").touch()
    with (
        pytest.raises(InputError, match=r"run\.earlier\.plim: exists already"),
        record(tmp_path / "run.plim", allocator=allocator, limit=LIMIT),
    ):
        pass
    assert session._free(tmp_path / "run.plim") == tmp_path / "run-2.plim"


def test_a_folder_of_ranks_has_the_newest_part_of_each(tmp_path: Path) -> None:
    for name in ("run.rank0.plim", "run.rank0.earlier.plim", "run.rank1.earlier.plim"):
        (tmp_path / name).touch()
    found = [Path(file.name).name for file in recordings_in(str(tmp_path))]
    assert found == ["run.rank0.plim", "run.rank1.earlier.plim"]


@pytest.mark.parametrize(
    "earlier",
    [
        None,
        {},
        {"event_count": -1, "seconds": 1.0},
        {"event_count": 1.5, "seconds": 1.0},
        {"event_count": 1, "seconds": float("nan")},
        {"event_count": 1, "seconds": "1"},
        {"event_count": 1, "seconds": 1.0, "uncertain_blocks": -1},
        {"event_count": 1, "seconds": 1.0, "more": 1},
    ],
)
def test_impossible_earlier_events_are_damage(earlier: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        check_settings({"earlier": earlier})


@pytest.mark.parametrize(
    ("seconds", "text"), [(3 * 3600, "the first 3 h"), (600, "the first 10 min")]
)
def test_the_missing_time_is_said(seconds: float, text: str) -> None:
    assert Earlier(1, seconds).problems()[0].startswith(f"{text} (1 event)")
