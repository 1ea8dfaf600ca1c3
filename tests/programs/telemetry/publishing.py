"""Programs that publish their memory counters, and fork.

    python publishing.py NAME

NAME is the function to run. The published files are in $XDG_RUNTIME_DIR/plimsoll.
"""

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import plimsoll.base.telemetry.publisher
from plimsoll.base.telemetry.counter_source import Counters
from plimsoll.base.telemetry.counters import DeviceCounters, ProcessCounters, read_processes
from plimsoll.base.telemetry.publisher import publish

plimsoll.base.telemetry.publisher._PATIENCE_SECONDS = 120


class Source:
    """One GPU, whose counters are all 7."""

    allocator = "native"

    def read(self) -> Counters:
        """Returns the counters to publish."""
        return Counters((DeviceCounters(0, True, "H100", "", *[7] * 14),))


def snapshot() -> dict[str, Any]:
    """Returns the snapshot that a request gets."""
    return {"segments": []}


def files() -> list[str]:
    """Returns the names of all published files."""
    folder = Path(os.environ["XDG_RUNTIME_DIR"]) / "plimsoll"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def both(pid: int) -> list[str]:
    """Returns the names of a process's two files."""
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    return [f"{pid}-{namespace}.counters", f"{pid}-{namespace}.socket"]


def wait(condition: Callable[[], object]) -> bool:
    """Waits up to two minutes for a condition. Returns whether it holds."""
    for _ in range(12_000):
        if condition():
            return True
        time.sleep(0.01)
    return False


def start() -> None:
    """Starts publishing, and waits for the files."""
    publish(Source(), snapshot)
    assert wait(lambda: files() == both(os.getpid())), files()


def fork(in_child: Callable[[], bool]) -> None:
    """Forks, and checks that `in_child` returns true in the child."""
    child = os.fork()
    if child == 0:
        os._exit(0 if in_child() else 5)
    assert os.waitpid(child, 0)[1] == 0


def published(pid: int) -> ProcessCounters:
    """Returns the counters that a process published last."""
    (found,) = (found for found in read_processes() if found.pid == pid)
    return found


def publishers() -> list[threading.Thread]:
    """Returns the publishing threads."""
    return [thread for thread in threading.enumerate() if thread.name == "plimsoll counters"]


def until_the_end() -> None:
    """Publishes until the program ends."""
    start()


def unless_switched_off() -> None:
    """Checks that nothing is published."""
    publish(Source(), snapshot)
    assert files() == []
    assert threading.active_count() == 1


def twice() -> None:
    """Starts publishing twice."""
    publish(Source(), snapshot)
    start()
    assert threading.active_count() == 2


def until_killed() -> None:
    """Publishes, then kills the process with SIGKILL."""
    start()
    os.kill(os.getpid(), 9)


def beside_a_quiet_child() -> None:
    """Forks a child that publishes nothing, while its parent goes on publishing."""
    start()
    began = time.monotonic_ns()

    def is_quiet() -> bool:
        assert wait(lambda: published(os.getppid()).heartbeat_ns > began + 300_000_000)
        return threading.active_count() == 1 and files() == both(os.getppid())

    fork(is_quiet)
    assert files() == both(os.getpid()), files()
    ended = time.monotonic_ns()
    assert wait(lambda: published(os.getpid()).heartbeat_ns > ended)


def without_its_thread_while_it_forks() -> None:
    """Forks. Checks that the publishing thread ended before the fork, and that a new one runs."""
    start()
    before = publishers()
    fork(lambda: True)
    after = publishers()
    assert [thread.is_alive() for thread in before] == [False]
    assert [thread.is_alive() for thread in after] == [True]


def beside_a_child_that_publishes() -> None:
    """Forks a child that uses a GPU and publishes too."""
    start()

    def publishes() -> bool:
        publish(Source(), snapshot)
        wanted = sorted([*both(os.getppid()), *both(os.getpid())])
        return wait(lambda: files() == wanted)

    fork(publishes)
    assert set(files()) >= set(both(os.getpid()))


def beside_a_child_that_ends() -> None:
    """Forks a child that ends normally."""
    start()
    child = os.fork()
    if child == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert files() == both(os.getpid()), files()


def while_threads_fork() -> None:
    """Forks in four threads at the same time."""
    start()
    ends = []

    def fork_often() -> None:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                os._exit(0 if threading.active_count() == 1 else 5)
            ends.append(os.waitpid(child, 0)[1])

    forking = [threading.Thread(target=fork_often) for _ in range(4)]
    for thread in forking:
        thread.start()
    for thread in forking:
        thread.join()
    assert ends == [0] * 80, ends
    assert [t.name for t in threading.enumerate()] == ["MainThread", "plimsoll counters"]


def with_all_files_closed() -> None:
    """Closes the file descriptors 3 to 63, then forks."""
    start()
    os.closerange(3, 64)
    fork(lambda: True)


def beside_a_pool() -> None:
    """Uses a pool of worker processes."""
    start()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(abs, range(-20, 0)) == list(range(20, 0, -1))


globals()[sys.argv[1]]()
