"""Tests `plimsoll top` with real processes on simulated GPUs, and snapshots that users request."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from plimsoll import InputError
from plimsoll.base.telemetry.counters import read_processes
from plimsoll.base.telemetry.folder import counters_path
from plimsoll.base.telemetry.requests import request_snapshot
from plimsoll.integrations.top.app import TopApp
from plimsoll.integrations.top.watch import Watch
from plimsoll.recordings.reading import read_recording
from tests.commands import run_plimsoll
from tests.simulated import PROGRAMS
from tests.waiting import PATIENCE_SECONDS, wait_for

pytest.importorskip("torch")

MIB = 1 << 20
HOLDER = PROGRAMS / "telemetry" / "holder.py"


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "plimsoll"


def look() -> dict[str, Any]:
    done = run_plimsoll("top", "--once", "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@contextmanager
def running(*arguments: str, gpu: str = "T4") -> Iterator[int]:
    """Yields the process id of a process that holds its tensors and waits."""
    started = subprocess.Popen(
        [sys.executable, "-m", "plimsoll", "run", "--simulate", gpu, str(HOLDER), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert started.stdin is not None
    assert started.stdout is not None
    with started.stdin, started.stdout:
        try:
            assert started.stdout.readline() == "ready\n"
            yield holder_of(arguments)
        finally:
            started.stdin.close()
            started.wait()


def holder_of(arguments: tuple[str, ...]) -> int:
    """Waits until `plimsoll top` can see the script. Returns the script's process number."""
    program = " ".join(["holder.py", *arguments]).encode(errors="replace").decode()
    now = time.monotonic_ns()

    def found() -> list[int]:
        mine = (p for p in read_processes() if p.program == program)
        return [process.pid for process in mine if process.heartbeat_ns > now]

    return int(wait_for(found)[0])


def pids_of(found: dict[str, Any]) -> list[int]:
    return [process["pid"] for gpu in found["gpus"] for process in gpu["processes"]]


def gpu_of(found: dict[str, Any], pid: int) -> dict[str, Any]:
    (gpu,) = (g for g in found["gpus"] if [p["pid"] for p in g["processes"]] == [pid])
    return dict(gpu)


@pytest.mark.long
def test_two_processes_are_taken_apart() -> None:
    with running("30") as first, running("40", gpu="H100") as second:
        found = look()
        t4, h100 = gpu_of(found, first), gpu_of(found, second)
    assert (t4["name"], h100["name"]) == ("Tesla T4", "NVIDIA H100 80GB HBM3")
    assert t4["is_simulated"]
    (use,) = t4["processes"]
    assert use["program"] == "holder.py 30"
    assert use["allocated_bytes"] == 7 * 30 * MIB
    assert use["reserved_bytes"] == 8 * 30 * MIB
    assert use["cached_bytes"] == 30 * MIB
    assert use["fragments_bytes"] == 0
    assert use["driver_bytes"] == use["context_bytes"] + use["reserved_bytes"]
    assert use["driver_bytes"] == t4["dedicated_used_bytes"]
    assert use["pinned_bytes"] == t4["shared_used_bytes"] == 8 * MIB
    assert h100["processes"][0]["allocated_bytes"] == 7 * 40 * MIB


@pytest.mark.long
def test_a_process_that_is_killed_is_gone(runtime: Path) -> None:
    with running("31") as pid:
        assert gpu_of(look(), pid)
        assert counters_path(runtime, pid).exists()
        os.kill(pid, signal.SIGKILL)
        assert wait_for(lambda: pid not in pids_of(look()))
    assert list(runtime.iterdir()) == []


def test_a_watched_process_that_is_killed_is_told_on_the_screen() -> None:
    async def watch(pid: int) -> None:
        app = TopApp(Watch().look, interval_seconds=0.1)
        messages: list[str] = []
        app.notify = lambda message, **_: messages.append(message)  # type: ignore[method-assign]
        async with app.run_test(size=(100, 30)) as pilot:

            async def wait_until(condition: Callable[[], bool]) -> None:
                ends = time.monotonic() + PATIENCE_SECONDS
                while not condition():
                    assert time.monotonic() < ends
                    await pilot.pause(0.05)

            await wait_until(lambda: any(row.key[1] == pid for row in app._rows))
            while app._selected is None or app._selected[1] != pid:
                await pilot.press("down")
            os.kill(pid, signal.SIGKILL)
            await wait_until(lambda: app._selected is None)
            assert (
                messages.count(f"process {pid} has ended") == 1
            )  # other messages may follow, because other programs may end too
            assert not any(row.key[1] == pid for row in app._rows)

    with running("37") as pid:
        asyncio.run(watch(pid))


def test_the_full_screen_runs_in_a_terminal() -> None:
    with running("38"):
        terminal, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
        shown = subprocess.Popen(
            [sys.executable, "-m", "plimsoll", "top", "--interval", "0.2"],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            env={**os.environ, "TERM": "xterm-256color"},
            start_new_session=True,
        )
        os.close(inside)
        seen = b""
        while b"holder.py" not in seen:
            assert select.select([terminal], [], [], PATIENCE_SECONDS)[0], seen
            seen += os.read(terminal, 65536)
        os.write(terminal, b"q")
        with suppress(OSError):  # Linux reports EIO when the other end has closed
            while select.select([terminal], [], [], PATIENCE_SECONDS)[0]:
                os.read(terminal, 65536)
        os.close(terminal)
        assert shown.wait(timeout=PATIENCE_SECONDS) == 0
    assert b"sim 0 of " in seen


def test_a_process_that_ends_takes_its_files_along(runtime: Path) -> None:
    with running("32"):
        assert len(list(runtime.iterdir())) == 2
    assert list(runtime.iterdir()) == []


@pytest.mark.long
def test_a_process_that_is_stopped_is_called_silent() -> None:
    with running("33") as pid:
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_for(lambda: gpu_of(look(), pid)["processes"][0]["silent_seconds"])
            with pytest.raises(InputError, match=r"did not answer within 0\.5 s"):
                request_snapshot(pid, timeout_seconds=0.5)
        finally:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.long
def test_the_text_names_the_next_command() -> None:
    with running("34"):
        done = run_plimsoll("top", "--once")
    assert done.returncode == 0
    assert "sim 0 of " in done.stdout
    assert "holder.py 34" in done.stdout
    assert "\x1b" not in done.stdout
    # any process number, because other programs may run on this machine
    assert re.fullmatch(r"next: plimsoll explain \d+\n", done.stderr)


@pytest.mark.long
def test_a_terminal_without_the_signs_of_the_bars_gets_the_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with running("39"):
        monkeypatch.setenv("PYTHONIOENCODING", "ascii")
        done = run_plimsoll("top", "--once")
    assert done.returncode == 0, done.stderr
    assert "holder.py 39" in done.stdout


@pytest.mark.long
def test_names_that_are_no_text_are_shown() -> None:
    with running("40", os.fsdecode(b"caf\xe9")) as pid:
        found = look()
    assert gpu_of(found, pid)["processes"][0]["program"] == "holder.py 40 caf?"


def test_nothing_is_published_where_that_is_switched_off(
    monkeypatch: pytest.MonkeyPatch, runtime: Path
) -> None:
    monkeypatch.setenv("PLIMSOLL_PUBLISH", "0")
    done = subprocess.run(
        [sys.executable, "-m", "plimsoll", "run", "--simulate", "T4", str(HOLDER), "1"],
        input="",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "ready\n"
    assert not runtime.exists()


@pytest.mark.long
def test_a_snapshot_of_a_running_process_replays_as_it_was_recorded(tmp_path: Path) -> None:
    with running("35", "record") as pid:
        content = request_snapshot(pid)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(content)
    (device,) = read_recording(path).devices
    assert device.event_count > 8
    done = run_plimsoll("replay", str(path), "--json")
    assert json.loads(done.stdout)["matches_recording"] is True


def test_without_a_process_there_is_none_to_ask() -> None:
    with running("36") as pid:
        pass
    with pytest.raises(InputError, match=f"there is no process {pid}"):
        request_snapshot(pid)
    with pytest.raises(InputError, match="does not run plimsoll"):
        request_snapshot(os.getpid())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--once", "--sort", "colour"], "unknown sort key 'colour'"),
        (["--interval", "0"], "an interval lies within 0.1 and 3600 seconds"),
        (["--interval", "nan"], "an interval lies within 0.1 and 3600 seconds"),
        (["--once", "--interval", "2"], "--once looks once: leave --interval out"),
        (["--json", "--interval", "2"], "--json looks once: leave --interval out"),
        (["--json", "--sort", "pid"], "--json does not sort"),
        (["--interval", "2"], "there is no terminal to refresh; use --once"),
    ],
    ids=" ".join,
)
def test_options_that_are_bad_or_would_do_nothing_get_one_line(
    options: list[str], message: str
) -> None:
    done = run_plimsoll("top", *options)
    assert done.returncode == 2
    assert done.stderr.startswith(f"plimsoll: {message}")
    assert len(done.stderr.splitlines()) == 1
