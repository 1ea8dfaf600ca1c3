"""Tests the thread that publishes a process's memory counters; it must not disturb the program."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from plimsoll.base.telemetry.counter_source import Counters
from plimsoll.base.telemetry.counters import DeviceCounters, read_counters, read_processes
from plimsoll.base.telemetry.folder import counters_path, socket_path
from plimsoll.base.telemetry.publisher import Publisher
from tests.recordings import ROOT
from tests.waiting import wait_for

PROGRAM = ROOT / "tests" / "programs" / "telemetry" / "publishing.py"


class FakeSource:
    allocator = "native"

    def __init__(self) -> None:
        self.value = 0
        self.reads = 0
        self.error: Exception | None = None
        self.has_devices = True

    def read(self) -> Counters:
        self.reads += 1
        if self.error is not None:
            raise self.error
        self.value += 1
        device = DeviceCounters(0, True, "H100", "", *[self.value] * 14)
        return Counters((device,) if self.has_devices else (), pinned_bytes=5)

    def is_past(self, value: int) -> bool:
        return self.value > value


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plimsoll.base.telemetry.publisher._PATIENCE_SECONDS", 120)


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()


@pytest.fixture
def publisher(tmp_path: Path, source: FakeSource) -> Iterator[Publisher]:
    made = Publisher(source, dict, tmp_path, interval_seconds=0.01)
    yield made
    made.stop()


def run(what: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", str(PROGRAM), what],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "XDG_RUNTIME_DIR": str(folder), **environment},
    )


def check(what: str, folder: Path, **environment: str) -> None:
    done = run(what, folder, **environment)
    assert (done.returncode, done.stderr) == (0, "")


def test_counters_are_written_again_and_again(tmp_path: Path, publisher: Publisher) -> None:
    path = counters_path(tmp_path, os.getpid())
    publisher.start()
    wait_for(path.exists)
    wait_for(lambda: path.stat().st_size > 0 and read_counters(path).devices[0].allocated_bytes > 5)
    found = read_counters(path)
    assert (found.pid, found.pinned_bytes, found.allocator) == (os.getpid(), 5, "native")
    assert found.is_running()
    assert socket_path(tmp_path, os.getpid()).stat().st_mode & 0o777 == 0o600


def test_nothing_is_written_before_a_gpu_is_used(
    tmp_path: Path, publisher: Publisher, source: FakeSource
) -> None:
    source.has_devices = False
    publisher.start()
    wait_for(lambda: source.value > 3)
    assert list(tmp_path.iterdir()) == []
    source.has_devices = True
    wait_for(lambda: len(list(tmp_path.iterdir())) == 2)


def test_errors_of_the_source_are_swallowed_and_it_goes_on(
    publisher: Publisher, source: FakeSource
) -> None:
    source.error = RuntimeError("the allocator is busy")
    publisher.start()
    wait_for(lambda: source.reads > 3)
    assert source.value == 0
    source.error = None
    wait_for(lambda: source.value > 3)


def test_its_files_go_when_it_stops(tmp_path: Path, source: FakeSource) -> None:
    publisher = Publisher(source, dict, tmp_path, interval_seconds=0.01)
    publisher.start()
    wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
    publisher.stop()
    assert list(tmp_path.iterdir()) == []
    assert not [t for t in threading.enumerate() if t.name == "plimsoll counters"]


def test_it_pauses_and_goes_on(publisher: Publisher, source: FakeSource) -> None:
    for _ in range(3):
        publisher.start()
        wait_for(partial(source.is_past, source.value + 2))
        assert publisher.pause()
        assert not [t for t in threading.enumerate() if t.name == "plimsoll counters"]
        assert publisher.pause()


def test_a_folder_that_vanishes_is_no_error(tmp_path: Path, source: FakeSource) -> None:
    folder = tmp_path / "gone"
    publisher = Publisher(source, dict, folder, interval_seconds=0.01)
    publisher.start()
    wait_for(lambda: source.value > 3)
    publisher.stop()


def test_after_its_folder_vanished_it_publishes_where_there_is_one(
    tmp_path: Path, source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir(mode=0o700)
    monkeypatch.setattr("plimsoll.base.telemetry.folder.folders", lambda: [first, second])
    publisher = Publisher(source, dict, interval_seconds=0.01)
    publisher.start()
    wait_for(lambda: len(list(first.iterdir())) == 2)
    first.rename(tmp_path / "gone")
    first.touch()  # while this file exists, the folder cannot be made again
    wait_for(lambda: len(list(second.iterdir())) == 2)
    wait_for(lambda: read_processes(only=second))
    publisher.stop()
    assert list(second.iterdir()) == []


def test_a_process_that_may_open_no_more_files_does_not_spin(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher.write()
    server = publisher._server
    assert server is not None
    answers: list[None] = []

    def fail() -> bool:
        answers.append(None)
        return False

    monkeypatch.setattr(server, "answer", fail)
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(str(server._path))
        for _ in range(3):
            assert not publisher._wait()
    assert len(answers) == 3


def test_a_path_too_long_for_a_socket_leaves_the_counters(
    tmp_path: Path, source: FakeSource
) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    publisher = Publisher(source, dict, folder, interval_seconds=0.01)
    publisher.start()
    wait_for(lambda: source.value > 3)
    assert [path.suffix for path in folder.iterdir()] == [".counters"]
    publisher.stop()


def test_the_end_of_a_program_removes_the_files(tmp_path: Path) -> None:
    check("until_the_end", tmp_path)
    assert list((tmp_path / "plimsoll").iterdir()) == []


def test_it_is_switched_off_by_the_environment(tmp_path: Path) -> None:
    check("unless_switched_off", tmp_path, PLIMSOLL_PUBLISH="0")


def test_publishing_twice_is_publishing_once(tmp_path: Path) -> None:
    check("twice", tmp_path)


def test_after_kill_9_the_next_process_cleans_up(tmp_path: Path) -> None:
    for _ in range(3):
        assert run("until_killed", tmp_path).returncode == -9


def test_after_kill_9_readers_clean_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run("until_killed", tmp_path)
    assert done.returncode == -9
    assert len(list((tmp_path / "plimsoll").iterdir())) == 2
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    read_processes(only=tmp_path / "plimsoll")
    assert list((tmp_path / "plimsoll").iterdir()) == []


class TestFork:
    def test_the_parent_goes_on_and_the_child_is_quiet(self, tmp_path: Path) -> None:
        check("beside_a_quiet_child", tmp_path)

    def test_no_thread_of_ours_is_there_to_be_forked(self, tmp_path: Path) -> None:
        check("without_its_thread_while_it_forks", tmp_path)

    def test_a_child_that_uses_a_gpu_publishes_its_own(self, tmp_path: Path) -> None:
        check("beside_a_child_that_publishes", tmp_path)

    def test_a_childs_normal_end_leaves_the_parents_files(self, tmp_path: Path) -> None:
        check("beside_a_child_that_ends", tmp_path)

    def test_threads_that_fork_at_the_same_time_leave_one_publisher(self, tmp_path: Path) -> None:
        check("while_threads_fork", tmp_path)

    def test_a_program_that_closed_all_files_forks_in_peace(self, tmp_path: Path) -> None:
        check("with_all_files_closed", tmp_path)

    def test_workers_of_multiprocessing_are_undisturbed(self, tmp_path: Path) -> None:
        check("beside_a_pool", tmp_path)
