"""Tests `plimsoll.record` on an allocator without PyTorch: the file's contents, and errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from plimsoll import (
    Allocator,
    InputError,
    OutOfMemoryError,
    SimulatedGpu,
    SimulatedMachine,
    explain,
    replay,
)
from plimsoll.base.units import GiB
from plimsoll.engine import current
from plimsoll.engine.gpus.recorded_card import card_entry, recorded_card
from plimsoll.engine.recorder import recorder
from plimsoll.engine.recorder.allocator_events import AllocatorEvents
from plimsoll.engine.recorder.named_marks import Marks
from plimsoll.recordings.events import Action
from plimsoll.recordings.reading import read_recording
from plimsoll.recordings.recording import Recording
from plimsoll.recordings.stream_writer import StreamWriter
from plimsoll.torch.session.record import own_path, record
from tests.faults import limited_files
from tests.recordings import ROOT
from tests.waiting import wait_for


@pytest.fixture
def allocator() -> Allocator:
    return Allocator(SimulatedGpu("8GiB"))


def churn(allocator: Allocator, rounds: int = 100) -> None:
    for number in range(rounds):
        address = allocator.malloc(1000 * number + 1)
        allocator.free(address)


def test_the_file_has_the_events_of_the_history(allocator: Allocator, tmp_path: Path) -> None:
    allocator.record_memory_history(stacks=True)
    with record(tmp_path / "run.plim", allocator=allocator):
        churn(allocator)
    (trace,) = read_recording(tmp_path / "run.plim").devices
    events = trace.load()
    history = [event for event in allocator.engine.history() if event[0] != "snapshot"]
    assert [Action(code).name.lower() for code in events.action] == [e[0] for e in history]
    assert events.address.tolist() == [event[1] for event in history]
    assert events.size.tolist() == [event[2] for event in history]
    assert trace.event_count == len(events) == 301


def test_stacks_are_spelled_out(allocator: Allocator, tmp_path: Path) -> None:
    with record(tmp_path / "run.plim", allocator=allocator):
        churn(allocator, 3)
    (trace,) = read_recording(tmp_path / "run.plim").devices
    events = trace.load()
    requests = events.stack[events.action == Action.ALLOC]
    assert len(set(requests.tolist())) == 1
    file, line, function = trace.frames(int(requests[0]))[0]
    assert (file, function) == (__file__, "churn")
    assert line > 0
    assert trace.frames(0) == []


def test_stacks_can_be_left_out(allocator: Allocator, tmp_path: Path) -> None:
    with record(tmp_path / "run.plim", allocator=allocator, stacks=False):
        churn(allocator)
    assert not read_recording(tmp_path / "run.plim").devices[0].load().stack.any()


def test_what_was_there_before_is_the_start(allocator: Allocator, tmp_path: Path) -> None:
    kept = allocator.malloc("3MiB")
    with record(tmp_path / "run.plim", allocator=allocator):
        churn(allocator)
        allocator.free(kept)
    (trace,) = read_recording(tmp_path / "run.plim").devices
    (segment,) = trace.start("", "2.13")
    assert (segment.blocks[0].address, segment.blocks[0].requested) == (kept, 3 << 20)
    assert [s.address for s in trace.segments] == [s.address for s in allocator.engine.segments()]
    assert replay(tmp_path / "run.plim")[0].matches_recording is True


def test_shared_memory_is_noted(tmp_path: Path) -> None:
    machine = SimulatedMachine(["1GiB"], host_memory="8GiB", driver="wddm")
    allocator = Allocator(machine.gpus[0])
    with record(tmp_path / "run.plim", allocator=allocator):
        allocator.malloc("900MiB")
        allocator.malloc("600MiB")
    events = read_recording(tmp_path / "run.plim").devices[0].load()
    shared = events.shared[events.action == Action.ALLOC]
    assert shared[0] == 0
    assert 400 << 20 < shared[1] <= 600 << 20


class TestMarks:
    def test_they_stand_between_the_events(self, allocator: Allocator, tmp_path: Path) -> None:
        with record(tmp_path / "run.plim", allocator=allocator) as recording:
            recording.mark("begin")
            churn(allocator, 10)
            recording.mark()
            churn(allocator, 5)
            recording.mark("end")
        result = read_recording(tmp_path / "run.plim")
        assert [(mark.event, mark.name, mark.device) for mark in result.marks] == [
            (0, "begin", 0),
            (31, "step", 0),  # after one segment's event and three events in each of ten rounds
            (46, "end", 0),
        ]

    def test_threads_that_name_at_once_get_numbers_of_their_own(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Slow(dict[str, int]):
            """A dictionary with a slow `setdefault`, so that calls of several threads overlap."""

            def setdefault(self, key: str, default: int | None = None) -> int:
                time.sleep(0.01)
                return super().setdefault(key, default or 0)

        marks = Marks()
        monkeypatch.setattr(marks, "_numbers", Slow())
        numbers: list[int] = []
        threads = [
            threading.Thread(target=lambda name: numbers.append(marks.number(name)), args=(name,))
            for name in (f"mark {number}" for number in range(8))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(numbers) == [*range(8)]

    def test_steps_of_optimizers_are_those_of_pytorchs_memory(
        self, allocator: Allocator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Optimizer steps become marks only in recordings of PyTorch's memory.

        The first recording is of an allocator alone. In the second one, the source of events says
        that PyTorch is there.
        """
        with record(tmp_path / "run.plim", allocator=allocator):
            churn(allocator, 1)
            recorder._after_step()
        assert read_recording(tmp_path / "run.plim").marks == []
        monkeypatch.setattr(AllocatorEvents, "when_torch_is_there", lambda _self, action: action())
        monkeypatch.setattr(recorder, "_follow_program", lambda: None)
        monkeypatch.setattr(recorder, "_uses", Mock())
        with record(tmp_path / "other.plim", allocator=allocator):
            churn(allocator, 1)
            recorder._after_step()
        assert [mark.name for mark in read_recording(tmp_path / "other.plim").marks] == ["step"]

    def test_they_need_a_recording(self, allocator: Allocator, tmp_path: Path) -> None:
        with record(tmp_path / "run.plim", allocator=allocator) as recording:
            churn(allocator, 1)
        with pytest.raises(InputError, match="while the recording was not on"):
            recording.mark()


class TestMisuse:
    @pytest.mark.parametrize("target", ["there", "not there"])
    def test_a_link_is_not_followed(
        self, allocator: Allocator, tmp_path: Path, target: str
    ) -> None:
        (tmp_path / "there").write_text("mine")
        (tmp_path / "run.plim").symlink_to(tmp_path / target)
        with (
            pytest.raises(InputError, match=r"run\.plim: is a link, and links are not followed"),
            record(tmp_path / "run.plim", allocator=allocator),
        ):
            pass
        assert (tmp_path / "there").read_text() == "mine"
        assert not (tmp_path / "not there").exists()

    def test_a_file_that_exists_is_kept(self, allocator: Allocator, tmp_path: Path) -> None:
        (tmp_path / "run.plim").write_text("mine")
        with (
            pytest.raises(InputError, match=r"run\.plim: exists already and is not overwritten"),
            record(tmp_path / "run.plim", allocator=allocator),
        ):
            pass
        assert (tmp_path / "run.plim").read_text() == "mine"

    def test_recordings_do_not_nest(self, allocator: Allocator, tmp_path: Path) -> None:
        with record(tmp_path / "outer.plim", allocator=allocator):
            with (
                pytest.raises(InputError, match=r"outer\.plim is on already"),
                record(tmp_path / "inner.plim", allocator=allocator),
            ):
                pass
            churn(allocator, 1)
        assert not (tmp_path / "inner.plim").exists()
        assert read_recording(tmp_path / "outer.plim").is_whole
        with record(tmp_path / "next.plim", allocator=allocator):
            churn(allocator, 1)

    def test_a_name_of_another_format_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"a recording is a .plim file; name it run.plim"):
            record(tmp_path / "run.pickle")
        assert record(tmp_path / "run").path == tmp_path / "run"

    def test_a_folder_that_is_missing_is_named(self, allocator: Allocator, tmp_path: Path) -> None:
        with (
            pytest.raises(InputError, match=r"run\.plim: cannot be written: No such file"),
            record(tmp_path / "missing" / "run.plim", allocator=allocator),
        ):
            pass

    @pytest.mark.parametrize("room", [16, 4096])
    def test_a_beginning_that_cannot_be_written_leaves_nothing(
        self, allocator: Allocator, tmp_path: Path, room: int
    ) -> None:
        """The header does not fit into 16 bytes, nor the initial segments into 4096 bytes."""
        for _ in range(2000):
            allocator.malloc("1MiB")
        recording = record(tmp_path / "run.plim", allocator=allocator)
        with limited_files(room), pytest.raises(InputError, match="cannot be written: File too"):
            recording.__enter__()
        assert not (tmp_path / "run.plim").exists()
        recording.stop()
        churn(allocator, 1)  # not recorded
        with recording:
            churn(allocator, 5)
        assert recording.event_count == 15
        assert read_recording(tmp_path / "run.plim").is_whole

    def test_without_a_gpu_it_says_what_needs_none(self, tmp_path: Path) -> None:
        torch = pytest.importorskip("torch")
        if torch.version.cuda is not None:
            pytest.skip("PyTorch has CUDA")
        with (
            pytest.raises(InputError, match=r"nothing to record.*--simulate H100 --record FILE"),
            record(tmp_path / "run.plim"),
        ):
            pass
        assert not (tmp_path / "run.plim").exists()

    def test_nothing_at_all_is_an_empty_history(self, allocator: Allocator, tmp_path: Path) -> None:
        with record(tmp_path / "run.plim", allocator=allocator):
            pass
        with pytest.raises(InputError, match="the history is empty"):
            read_recording(tmp_path / "run.plim")


def test_an_exception_ends_the_file_in_good_order(allocator: Allocator, tmp_path: Path) -> None:
    @record(tmp_path / "run.plim", allocator=allocator)
    def fail() -> None:
        churn(allocator)
        raise RuntimeError("the program's own")

    with pytest.raises(RuntimeError, match="the program's own"):
        fail()
    recording = read_recording(tmp_path / "run.plim")
    assert recording.is_whole
    assert recording.devices[0].event_count == 301


def test_each_call_of_a_decorated_function_has_a_file(allocator: Allocator, tmp_path: Path) -> None:
    @record(tmp_path / "run.plim", allocator=allocator)
    def work(rounds: int) -> str:
        """Works."""
        churn(allocator, rounds)
        return "done"

    assert [work(7), work(5), work(3)] == ["done"] * 3
    assert work.__doc__ == "Works."
    counts = {path.name: read_recording(path).devices[0].event_count for path in tmp_path.iterdir()}
    assert counts == {"run.plim": 22, "run-2.plim": 15, "run-3.plim": 9}


def test_a_call_within_a_call_is_part_of_its_recording(
    allocator: Allocator, tmp_path: Path
) -> None:
    @record(tmp_path / "run.plim", allocator=allocator)
    def work(depth: int) -> None:
        churn(allocator, 1)
        if depth:
            work(depth - 1)

    work(2)
    assert [path.name for path in tmp_path.iterdir()] == ["run.plim"]
    assert read_recording(tmp_path / "run.plim").devices[0].event_count == 10


def test_a_decorated_function_overwrites_nothing(allocator: Allocator, tmp_path: Path) -> None:
    (tmp_path / "run-2.plim").write_text("mine")

    @record(tmp_path / "run.plim", allocator=allocator)
    def work() -> None:
        churn(allocator, 1)

    work()
    for _ in range(2):
        with pytest.raises(InputError, match=r"run-2\.plim: exists already"):
            work()
    (tmp_path / "run-2.plim").unlink()
    work()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run-2.plim", "run.plim"]


def test_events_are_in_the_file_while_the_program_runs(
    allocator: Allocator, tmp_path: Path
) -> None:
    with record(tmp_path / "run.plim", allocator=allocator):
        churn(allocator)
        recording = wait_for(lambda: opened(tmp_path / "run.plim"))
        assert recording is not None
        assert not recording.is_whole
        assert recording.devices[0].event_count > 0


def steps_in(path: Path) -> int:
    recording = opened(path)
    return len(recording.marks) if recording is not None else 0


def opened(path: Path) -> Recording | None:
    try:
        return read_recording(path)
    except InputError:
        return None


def test_lost_events_are_counted_and_said(
    allocator: Allocator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "_CAPACITY", 100)
    monkeypatch.setattr(recorder, "INTERVAL_SECONDS", 1000)
    with (
        # the number includes the events of the last snapshot
        pytest.warns(RuntimeWarning, match="202 events were lost"),
        record(tmp_path / "run.plim", allocator=allocator),
    ):
        churn(allocator)
    recording = read_recording(tmp_path / "run.plim")
    assert recording.dropped == 202
    assert recording.devices[0].event_count == 100


def test_a_full_disk_ends_the_recording_and_not_the_program(
    allocator: Allocator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with record(tmp_path / "run.plim", allocator=allocator) as recording:
        churn(allocator, 10)
        wait_for(lambda: recording.event_count > 0)
        with limited_files(recording.path.stat().st_size + 100):
            churn(allocator, 5000)
            wait_for(lambda: "plimsoll-record" not in {t.name for t in threading.enumerate()})
    assert "plimsoll: the recording to" in (said := capsys.readouterr().err)
    assert "ended: File too large" in said
    cut = read_recording(tmp_path / "run.plim")
    assert not cut.is_whole
    assert cut.devices[0].event_count == 31


def test_a_file_that_is_still_written_is_replayed_as_it_was_when_it_was_opened(
    allocator: Allocator, tmp_path: Path
) -> None:
    path = tmp_path / "run.plim"
    counts = []
    with record(path, allocator=allocator) as recording:
        for _ in range(5):
            churn(allocator, 50)
            recording.flush()
            opened = read_recording(path)
            churn(allocator, 50)
            recording.flush()
            assert not opened.is_whole
            (result,) = replay(opened)
            assert result.matches_recording is not False
            assert opened.devices[0].event_count == len(opened.devices[0].load())
            counts.append(opened.devices[0].event_count)
    assert counts == sorted(set(counts))
    assert replay(path)[0].matches_recording is True


def test_all_threads_are_recorded(tmp_path: Path) -> None:
    machine = SimulatedMachine(["8GiB", "8GiB"], host_memory="16GiB")
    allocator = Allocator(machine.gpus[1])
    with record(tmp_path / "run.plim", allocator=allocator):
        threads = [threading.Thread(target=churn, args=(allocator, 2000)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    (trace,) = read_recording(tmp_path / "run.plim").devices
    assert trace.device == 1
    actions = np.bincount(trace.load().action)
    assert actions[[Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED]].tolist() == [
        8000, 8000, 8000
    ]  # fmt: skip
    assert replay(tmp_path / "run.plim")[0].matches_recording is True


PROGRAM = ROOT / "tests" / "programs" / "recorder" / "recording.py"


def program(name: str, path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), name, str(path)], stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("steps", [1, 100, 1000])
def test_a_killed_program_leaves_a_file_that_opens(steps: int, tmp_path: Path) -> None:
    path = tmp_path / "run.plim"
    with program("steps", path) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "recording\n"
        wait_for(lambda: steps_in(path) >= steps)
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    recording = read_recording(path)
    assert not recording.is_whole
    (trace,) = recording.devices
    events = trace.load()
    assert len(events) == trace.event_count > 0
    assert {mark.name for mark in recording.marks} == {"step"}
    assert trace.frames(int(events.stack[1]))[0][0] == str(PROGRAM)
    assert replay(path)[0].num_ooms == 0


def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.plim"
    with program("fork", path) as parent:
        assert parent.wait() == 0
    recording = read_recording(path)
    assert recording.is_whole
    actions = recording.devices[0].load().action.tolist()
    assert actions == [Action.SEGMENT_ALLOC, Action.ALLOC, Action.ALLOC]


def test_the_last_moments_of_a_program_that_exits_are_there(tmp_path: Path) -> None:
    path = tmp_path / "run.plim"
    with program("leave", path) as child:
        assert child.wait() == 3
    assert read_recording(path).is_whole


def test_a_flush_beside_the_end_finds_nothing_to_do(
    allocator: Allocator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recording = record(tmp_path / "run.plim", allocator=allocator)
    close = StreamWriter.close

    def mark_and_flush() -> None:
        recording.mark()
        recording.flush()

    flushing = threading.Thread(target=mark_and_flush)

    def close_and_wait(writer: StreamWriter) -> None:
        close(writer)
        flushing.start()
        flushing.join(0.2)

    monkeypatch.setattr(StreamWriter, "close", close_and_wait)
    with recording:
        churn(allocator, 1)
    flushing.join()
    assert capsys.readouterr().err == ""
    assert read_recording(recording.path).is_whole


def test_the_file_is_the_users_own(allocator: Allocator, tmp_path: Path) -> None:
    with record(tmp_path / "run.plim", allocator=allocator):
        churn(allocator, 1)
    assert os.stat(tmp_path / "run.plim").st_mode & 0o077 == 0  # noqa: PTH116


@pytest.mark.parametrize(
    ("fell_back", "name"), [(None, "elastic"), ("no virtual memory", "native")]
)
def test_the_allocator_in_place_is_named(
    monkeypatch: pytest.MonkeyPatch, fell_back: str | None, name: str
) -> None:
    engine = SimpleNamespace(fell_back=fell_back)
    in_place = SimpleNamespace(allocator="elastic", opened=lambda: {0: engine})
    monkeypatch.setattr(current, "_engines", in_place)
    assert current.allocator_name() == name
    monkeypatch.setattr(current, "_engines", None)
    assert current.allocator_name() is None


def test_a_recording_may_begin_where_a_large_block_was_freed_and_split(
    allocator: Allocator, tmp_path: Path
) -> None:
    allocator.free(allocator.malloc("256MiB"))
    allocator.malloc("16MiB")  # splits the cached block of 256 MiB
    with record(tmp_path / "run.plim", allocator=allocator):
        allocator.malloc("8MiB")
    (found,) = replay(tmp_path / "run.plim")
    assert found.matches_recording is True
    assert found.peak_allocated_bytes == 24 << 20


@pytest.mark.parametrize("name", ["run.plim", "run"])
def test_processes_of_a_job_have_names_of_recordings(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    path = own_path(Path(name))
    assert path == Path("run.rank3.plim")
    assert record(path).path == path


def test_a_recorder_says_what_it_does(allocator: Allocator, tmp_path: Path) -> None:
    path = tmp_path / "run.plim"
    recorder = record(path, allocator=allocator)
    assert str(recorder) == f"{path}: not recording, 0 events written"
    with recorder:
        allocator.free(allocator.malloc("4MiB"))
        recorder.flush()
        count = recorder.event_count
        assert count > 0
        assert str(recorder) == f"{path}: recording, {count} events written"
    assert repr(recorder) == f"<Recorder {path}: not recording, {count} events written>"


def out_of_memory_under_a_limit(allocator: Allocator) -> None:
    """Fails to allocate under a limit of 1 GiB, whose size the events alone do not show."""
    allocator.set_per_process_memory_fraction(1 / 8)
    held = [allocator.malloc("256MiB") for _ in range(3)]
    with pytest.raises(OutOfMemoryError):
        allocator.malloc("300MiB")
    allocator.free(held[0])


def test_a_limit_that_the_program_sets_is_recorded(allocator: Allocator, tmp_path: Path) -> None:
    path = tmp_path / "run.plim"
    with record(path, allocator=allocator):
        out_of_memory_under_a_limit(allocator)
    assert read_recording(path).limits_of(0) == [None, GiB]
    (found,) = replay(path)
    assert (found.limit_bytes, found.limit_source) == (GiB, "recorded")
    assert found.matches_recording is True
    failed = explain(path).out_of_memory[-1]
    assert failed.limit_range_bytes == (GiB, GiB + 1)
    assert "a limit (set_per_process_memory_fraction) of 1.00 GiB." in str(explain(path))


def test_a_limit_from_before_the_recording_is_recorded_and_held_by_replays(
    allocator: Allocator, tmp_path: Path
) -> None:
    allocator.set_per_process_memory_fraction(1 / 8)
    with record(tmp_path / "run.plim", allocator=allocator):
        allocator.malloc("256MiB")
    for conf in (None, "expandable_segments:True"):
        (found,) = replay(tmp_path / "run.plim", conf=conf)
        assert (found.limit_bytes, found.limit_source) == (GiB, "recorded")


def test_a_limit_above_what_the_card_has_gives_other_settings_no_more_than_the_card(
    allocator: Allocator, tmp_path: Path
) -> None:
    allocator.set_per_process_memory_fraction(0.999)
    with record(tmp_path / "run.plim", allocator=allocator):
        allocator.malloc("256MiB")
    recording = read_recording(tmp_path / "run.plim")
    named = {**recording.settings, "gpus": [card_entry(0, "H100", 8 * GiB)]}
    card = recorded_card(named, 0)
    assert card is not None
    (found,) = replay(replace(recording, settings=named), conf="expandable_segments:True")
    assert (found.limit_bytes, found.limit_source) == (card.usable_bytes, "card")


def test_a_limit_below_what_was_reserved_before_limits_no_replay(
    allocator: Allocator, tmp_path: Path
) -> None:
    with record(tmp_path / "run.plim", allocator=allocator):
        allocator.malloc("2GiB")
        allocator.set_per_process_memory_fraction(1 / 8)
    (found,) = replay(tmp_path / "run.plim")
    assert (found.limit_bytes, found.matches_recording) == (None, True)


def test_without_recorded_limits_a_limit_is_inferred(allocator: Allocator, tmp_path: Path) -> None:
    with record(tmp_path / "run.plim", allocator=allocator):
        out_of_memory_under_a_limit(allocator)
    recording = read_recording(tmp_path / "run.plim")
    older = replace(recording, settings={**recording.settings, "limits": {}})
    assert older.limits_of(0) == []
    assert replay(older)[0].limit_source == "inferred"
    failed = explain(older).out_of_memory[-1]
    assert failed.limit_range_bytes == (768 << 20, 1068 << 20)
