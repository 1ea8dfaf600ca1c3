"""Tests that a pool of worker processes does each item once, even if workers die."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from plimsoll.base.errors import InputError
from plimsoll.base.workers.done import Done
from plimsoll.base.workers.everywhere import run_all, where
from plimsoll.base.workers.local_processes import run_locally

if TYPE_CHECKING:
    from collections.abc import Sequence


def squared(number: int) -> int:
    if number < 0:
        raise ValueError(f"{number} is negative\nand more")
    print("what is printed is no answer")
    return number * number


def dies(item: tuple[str, int]) -> int:
    """Kills its worker the first `times` times; after that, returns the worker's process id."""
    path, times = item
    with Path(path).open("a") as file:
        file.write("x")
    if Path(path).stat().st_size <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


GARBAGE = (b"\xff" * 100, b"K\x05.", b"cos\nno_such_name\n.", b"(K\x05K\x06t.", b"\x80\x05]N.")


def garbles(item: tuple[str, int, bytes]) -> int:
    """Writes garbage into its worker's answers the first `times` times; then returns 7."""
    path, times, garbage = item
    with Path(path).open("a") as file:
        file.write("x")
    if Path(path).stat().st_size <= times:
        for descriptor in range(3, 16):
            with suppress(OSError):  # not open, or open for reading only
                os.write(descriptor, garbage)
    return 7


def gives_text(_: int) -> int:
    return "text"  # type: ignore[return-value]


def waits(path: str) -> None:
    try:
        Path(path, str(os.getpid())).touch()
        time.sleep(60)
    finally:
        Path(path, f"{os.getpid()}.undone").touch()


def asks_for_input(_: int) -> str:
    return sys.stdin.read()


def results(items: Sequence[int]) -> dict[int, Done[int]]:
    return {done.index: done for done in run_locally(squared, items, 2)}


def test_every_item_is_done_and_failures_say_why() -> None:
    found = results([3, -1, *range(50)])
    assert len(found) == 52
    assert found.pop(1) == Done(1, None, "ValueError: -1 is negative")
    assert [found[number].result for number in sorted(found)] == [9, *(n * n for n in range(50))]


def test_nothing_to_do_starts_nothing() -> None:
    assert list(run_all(squared, [])) == []


def test_an_item_whose_worker_is_killed_is_tried_again(tmp_path: Path) -> None:
    items = [(str(tmp_path / "often"), 9), *((str(tmp_path / str(n)), 2) for n in range(3))]
    found = {done.index: done for done in run_locally(dies, items, 2)}
    assert found[0] == Done(0, None, "the process that worked on it was killed by SIGKILL, 3 times")
    assert all(isinstance(found[number].result, int) for number in (1, 2, 3))


@pytest.mark.parametrize("garbage", GARBAGE, ids=repr)
def test_an_item_whose_worker_answers_with_garbage_is_tried_again(
    garbage: bytes, tmp_path: Path
) -> None:
    item = (str(tmp_path / "log"), 1, garbage)
    assert [*run_locally(garbles, [item], 1)] == [Done(0, 7)]


def test_an_item_whose_workers_answer_with_garbage_is_an_error_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plimsoll.base.workers.local_processes._SECONDS_TO_DIE", 0.1)
    items = [(str(tmp_path / f"log{number}"), 3 * number, GARBAGE[0]) for number in (0, 1)]
    sound, broken = sorted(run_locally(garbles, items, 1), key=lambda done: done.index)
    assert sound.result == 7
    assert broken.error == (
        "the process that worked on it gave an answer that cannot be read, 3 times"
    )


def test_a_result_of_another_type_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plimsoll.base.workers.local_processes._SECONDS_TO_DIE", 0.1)
    (done,) = run_locally(gives_text, [1], 1, int)
    assert done.result is None
    assert "an answer that cannot be read" in (done.error or "")


def test_what_is_asked_on_a_terminal_is_empty() -> None:
    assert [done.result for done in run_locally(asks_for_input, [1], 1)] == [""]


def test_who_stops_listening_ends_the_workers(tmp_path: Path) -> None:
    listening = run_locally(waits, [str(tmp_path)] * 4, 2)
    with pytest.raises(KeyboardInterrupt):
        _interrupted(listening, tmp_path)
    pids = {path.stem for path in tmp_path.iterdir()}
    assert len(pids) == 2
    assert {path.name for path in tmp_path.glob("*.undone")} == {f"{pid}.undone" for pid in pids}
    assert not any(Path("/proc", pid).exists() for pid in pids)


def _interrupted(listening: object, folder: Path) -> None:
    """Iterates over the answers until an interrupt, which comes once both workers are busy."""

    def interrupt(*_: object) -> None:
        if len(list(folder.iterdir())) == 2:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    try:
        list(listening)  # type: ignore[call-overload]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_workers_end_with_a_driver_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import tests.unit.test_workers as t\n"
        f"list(t.run_locally(t.waits, [{str(tmp_path)!r}] * 2, 2))"
    )
    driver = subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).parents[2])
    _wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
    pids = [path.name for path in tmp_path.iterdir()]
    driver.kill()
    driver.wait()
    _wait_for(lambda: len(list(tmp_path.glob("*.undone"))) == 2)
    _wait_for(lambda: not any(Path("/proc", pid).exists() for pid in pids))


def _wait_for(condition: object, seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_worker_ends_with_its_input_even_if_the_signal_is_lost() -> None:
    program = """
import signal
from plimsoll.base.workers.worker_process import main
signal.pthread_kill = lambda *_: None
main()
"""
    asked = pickle.dumps(("operator", "neg", sys.path)) + pickle.dumps(3)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, input=asked, capture_output=True, check=True, timeout=60)
    assert pickle.loads(done.stdout) == (-3, None)


def test_without_ray_a_cluster_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plimsoll.base.workers.everywhere.find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"ray.example:6379.*pip install 'plimsoll-gpu\[ray\]'"):
        run_all(squared, [1], address="ray.example:6379")
    on_this = "running in 2 processes on this machine, because Ray is not installed"
    assert where(processes=2) == on_this
    assert [done.result for done in run_all(squared, [5])] == [25]


def test_at_least_one_process_works() -> None:
    with pytest.raises(InputError, match="at least 1 process is needed, not 0"):
        run_all(squared, [1], processes=0)
