"""The publisher: what it writes, when it is quiet, and that no program notices it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plimsoll.telemetry.counter_source import Counters
from plimsoll.telemetry.counters import DeviceCounters, read_counters, read_processes
from plimsoll.telemetry.folder import counters_path, socket_path
from plimsoll.telemetry.publisher import Publisher

SOURCE = """
import os, sys, time, threading
import plimsoll.telemetry.publisher
from plimsoll.telemetry.counters import DeviceCounters
from plimsoll.telemetry.publisher import publish
from plimsoll.telemetry.counter_source import Counters
class Source:
    allocator = "native"
    def read(self):
        return Counters((DeviceCounters(0, True, "H100", "", *[7] * 14),))
    def snapshot(self):
        return {"segments": []}
plimsoll.telemetry.publisher._PATIENCE_SECONDS = 120
def files():
    folder = os.path.join(os.environ["XDG_RUNTIME_DIR"], "plimsoll")
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []
def wait(condition):
    for _ in range(12_000):
        if condition():
            return True
        time.sleep(0.01)
    return False
def both(pid):
    namespace = os.stat("/proc/self/ns/pid").st_ino
    return [f"{pid}-{namespace}.counters", f"{pid}-{namespace}.socket"]
"""


class FakeSource:
    allocator = "native"

    def __init__(self) -> None:
        self.value = 0
        self.error: Exception | None = None
        self.has_devices = True

    def read(self) -> Counters:
        if self.error is not None:
            raise self.error
        self.value += 1
        device = DeviceCounters(0, True, "H100", "", *[self.value] * 14)
        return Counters((device,) if self.has_devices else (), pinned_bytes=5)

    def snapshot(self) -> dict[str, Any]:
        return {"segments": []}


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plimsoll.telemetry.publisher._PATIENCE_SECONDS", 120)


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()


@pytest.fixture
def publisher(tmp_path: Path, source: FakeSource) -> Iterator[Publisher]:
    made = Publisher(source, tmp_path, interval_seconds=0.01)
    yield made
    made.stop()


def wait_for(condition: Any) -> None:
    ends = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.005)


def run(program: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", SOURCE + program],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "XDG_RUNTIME_DIR": str(folder), **environment},
    )


def check(program: str, folder: Path, **environment: str) -> None:
    done = run(program, folder, **environment)
    assert (done.returncode, done.stderr) == (0, "")


def test_counters_are_written_again_and_again(tmp_path: Path, publisher: Publisher) -> None:
    path = counters_path(tmp_path, os.getpid())
    publisher.start()
    wait_for(path.exists)
    wait_for(lambda: path.stat().st_size and read_counters(path).devices[0].allocated_bytes > 5)
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
    time.sleep(0.05)
    source.error = None
    wait_for(lambda: source.value > 3)


def test_its_files_go_when_it_stops(tmp_path: Path, source: FakeSource) -> None:
    publisher = Publisher(source, tmp_path, interval_seconds=0.01)
    publisher.start()
    wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
    publisher.stop()
    assert list(tmp_path.iterdir()) == []
    assert not [t for t in threading.enumerate() if t.name == "plimsoll counters"]


def test_it_pauses_and_goes_on(publisher: Publisher, source: FakeSource) -> None:
    for _ in range(3):
        publisher.start()
        before = source.value
        wait_for(lambda before=before: source.value > before + 2)
        assert publisher.pause()
        before = source.value
        time.sleep(0.05)
        assert source.value == before
        assert publisher.pause()


def test_a_folder_that_vanishes_is_no_error(tmp_path: Path, source: FakeSource) -> None:
    folder = tmp_path / "gone"
    publisher = Publisher(source, folder, interval_seconds=0.01)
    publisher.start()
    wait_for(lambda: source.value > 3)
    publisher.stop()


def test_after_its_folder_vanished_it_publishes_where_there_is_one(
    tmp_path: Path, source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir(mode=0o700)
    monkeypatch.setattr("plimsoll.telemetry.folder.folders", lambda: [first, second])
    publisher = Publisher(source, interval_seconds=0.01)
    publisher.start()
    wait_for(lambda: len(list(first.iterdir())) == 2)
    first.rename(tmp_path / "gone")
    first.touch()  # so that it cannot be made again
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
    publisher = Publisher(source, folder, interval_seconds=0.01)
    publisher.start()
    wait_for(lambda: source.value > 3)
    assert [path.suffix for path in folder.iterdir()] == [".counters"]
    publisher.stop()


def test_the_end_of_a_program_removes_the_files(tmp_path: Path) -> None:
    check("publish(Source())\nassert wait(lambda: files() == both(os.getpid())), files()", tmp_path)
    assert list((tmp_path / "plimsoll").iterdir()) == []


def test_it_is_switched_off_by_the_environment(tmp_path: Path) -> None:
    check(
        "publish(Source())\ntime.sleep(0.1)\n"
        "assert files() == [] and threading.active_count() == 1",
        tmp_path,
        PLIMSOLL_PUBLISH="0",
    )


def test_publishing_twice_is_publishing_once(tmp_path: Path) -> None:
    check(
        "publish(Source())\npublish(Source())\n"
        "assert wait(lambda: files() == both(os.getpid()))\nassert threading.active_count() == 2",
        tmp_path,
    )


def test_after_kill_9_the_next_process_cleans_up(tmp_path: Path) -> None:
    kill = (
        "publish(Source())\nassert wait(lambda: files() == both(os.getpid()))\n"
        "os.kill(os.getpid(), 9)"
    )
    for _ in range(3):
        assert run(kill, tmp_path).returncode == -9


def test_after_kill_9_readers_clean_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(
        "publish(Source())\nassert wait(lambda: files() == both(os.getpid()))\n"
        "os.kill(os.getpid(), 9)",
        tmp_path,
    )
    assert done.returncode == -9
    assert len(list((tmp_path / "plimsoll").iterdir())) == 2
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    read_processes(only=tmp_path / "plimsoll")
    assert list((tmp_path / "plimsoll").iterdir()) == []


class TestFork:
    def test_the_parent_goes_on_and_the_child_is_quiet(self, tmp_path: Path) -> None:
        check(
            """
publish(Source())
assert wait(lambda: files() == both(os.getpid()))
child = os.fork()
if child == 0:
    time.sleep(0.3)
    os._exit(0 if threading.active_count() == 1 and files() == both(os.getppid()) else 5)
assert os.waitpid(child, 0)[1] == 0
assert files() == both(os.getpid()), files()
from plimsoll.telemetry.counters import read_processes
def age():
    mine, = (found for found in read_processes() if found.pid == os.getpid())
    return time.monotonic_ns() - mine.heartbeat_ns
assert wait(lambda: age() < 100_000_000)
""",
            tmp_path,
        )

    def test_no_thread_of_ours_is_there_to_be_forked(self, tmp_path: Path) -> None:
        check(
            """
publish(Source())
assert wait(lambda: files() == both(os.getpid()))
import plimsoll.telemetry.publisher as publisher
thread = publisher._publisher._thread
child = os.fork()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
assert not thread.is_alive() and publisher._publisher._thread.is_alive()
""",
            tmp_path,
        )

    def test_a_child_that_uses_a_gpu_publishes_its_own(self, tmp_path: Path) -> None:
        check(
            """
publish(Source())
assert wait(lambda: files() == both(os.getpid()))
child = os.fork()
if child == 0:
    publish(Source())
    wanted = sorted([*both(os.getppid()), *both(os.getpid())])
    os._exit(0 if wait(lambda: files() == wanted) else 5)
assert os.waitpid(child, 0)[1] == 0
assert set(files()) >= set(both(os.getpid()))
""",
            tmp_path,
        )

    def test_a_childs_normal_end_leaves_the_parents_files(self, tmp_path: Path) -> None:
        check(
            """
publish(Source())
assert wait(lambda: files() == both(os.getpid()))
child = os.fork()
if child == 0:
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert files() == both(os.getpid()), files()
""",
            tmp_path,
        )

    def test_threads_that_fork_at_the_same_time_leave_one_publisher(self, tmp_path: Path) -> None:
        check(
            """
publish(Source())
assert wait(lambda: files() == both(os.getpid()))
ends = []
def fork():
    for _ in range(20):
        child = os.fork()
        if child == 0:
            os._exit(0 if threading.active_count() == 1 else 5)
        ends.append(os.waitpid(child, 0)[1])
forking = [threading.Thread(target=fork) for _ in range(4)]
for thread in forking:
    thread.start()
for thread in forking:
    thread.join()
assert ends == [0] * 80, ends
assert [t.name for t in threading.enumerate()] == ["MainThread", "plimsoll counters"]
""",
            tmp_path,
        )

    def test_a_program_that_closed_all_files_forks_in_peace(self, tmp_path: Path) -> None:
        check(
            """
publish(Source())
assert wait(lambda: files() == both(os.getpid()))
os.closerange(3, 64)
child = os.fork()
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
""",
            tmp_path,
        )

    def test_workers_of_multiprocessing_are_undisturbed(self, tmp_path: Path) -> None:
        check(
            """
import multiprocessing as mp
publish(Source())
assert wait(lambda: files() == both(os.getpid()))
with mp.get_context("fork").Pool(2) as pool:
    assert pool.map(abs, range(-20, 0)) == list(range(20, 0, -1))
""",
            tmp_path,
        )
