"""Tests snapshots on request: contents, recipients and errors."""

from __future__ import annotations

import os
import pickle
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from plimsoll import InputError
from plimsoll.base.telemetry import requests as module
from plimsoll.base.telemetry.folder import socket_path
from plimsoll.base.telemetry.requests import SnapshotServer, request_snapshot
from tests.recordings import ROOT

SNAPSHOT = {"segments": [{"address": 7, "blocks": []}], "device_traces": [[]]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "folders", lambda: [tmp_path / "plimsoll"])
    (tmp_path / "plimsoll").mkdir(mode=0o700)
    return tmp_path / "plimsoll"


@contextmanager
def serving(folder: Path, take: Callable[[], dict[str, Any]]) -> Iterator[SnapshotServer]:
    server = SnapshotServer(socket_path(folder, os.getpid()), take)
    ends = threading.Event()

    def serve() -> None:
        while not ends.is_set():
            if select.select([server], [], [], 0.05)[0]:
                server.answer()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield server
    finally:
        ends.set()
        thread.join()
        server.close()


@contextmanager
def answering(folder: Path, answer: bytes) -> Iterator[None]:
    """Sends `answer` to one request at this process's socket, whatever the protocol demands."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(socket_path(folder, os.getpid())))
        server.listen()

        def serve() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.recv(100)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join()


def test_a_snapshot_is_given_whole(folder: Path) -> None:
    with serving(folder, lambda: SNAPSHOT):
        assert pickle.loads(request_snapshot(os.getpid())) == SNAPSHOT


def test_large_ones_too_and_several_times(folder: Path) -> None:
    large = {"segments": ["x" * 1000] * 20_000, "text": "y" * 30_000_000}
    with serving(folder, lambda: large):
        for _ in range(2):
            assert pickle.loads(request_snapshot(os.getpid())) == large


def test_an_error_is_passed_on_in_one_line(folder: Path) -> None:
    def take() -> dict[str, Any]:
        raise RuntimeError("CUDA is\nnot ready")

    with (
        serving(folder, take),
        pytest.raises(InputError, match="could not make a snapshot: CUDA is not ready"),
    ):
        request_snapshot(os.getpid())


@pytest.mark.parametrize("pid", [0, -1, 4_194_999])
def test_a_process_that_does_not_exist(pid: int) -> None:
    with pytest.raises(InputError, match=f"there is no process {pid}"):
        request_snapshot(pid)


@pytest.mark.usefixtures("folder")
def test_a_process_without_plimsoll() -> None:
    with pytest.raises(InputError, match="does not run plimsoll"):
        request_snapshot(os.getpid())


def test_a_socket_that_nobody_listens_on(folder: Path) -> None:
    SnapshotServer(socket_path(folder, os.getpid()), lambda: SNAPSHOT).close()
    with pytest.raises(InputError, match="does not run plimsoll"):
        request_snapshot(os.getpid())


def test_another_process_behind_the_name_is_not_believed(folder: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        with serving(folder, lambda: SNAPSHOT):
            socket_path(folder, os.getpid()).rename(socket_path(folder, child.pid))
            with pytest.raises(InputError, match="does not run plimsoll"):
                request_snapshot(child.pid)
    finally:
        child.kill()
        child.wait()


def test_all_folders_are_asked(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale, long = tmp_path / "stale", tmp_path / ("x" * 120)
    for other in (stale, long):
        other.mkdir(mode=0o700)
    SnapshotServer(socket_path(stale, os.getpid()), lambda: SNAPSHOT).close()
    monkeypatch.setattr(module, "folders", lambda: [tmp_path / "none", long, stale, folder])
    with serving(folder, lambda: SNAPSHOT):
        assert pickle.loads(request_snapshot(os.getpid())) == SNAPSHOT


def test_who_is_not_believed_does_not_keep_others_from_being_asked(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    child = subprocess.Popen(
        [sys.executable, str(BREAKS_OFF), str(other), "hang"], stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    with child.stdout:
        try:
            child.stdout.readline()
            socket_path(other, child.pid).rename(socket_path(other, os.getpid()))
            monkeypatch.setattr(module, "folders", lambda: [other, folder])
            with serving(folder, lambda: SNAPSHOT):
                assert pickle.loads(request_snapshot(os.getpid())) == SNAPSHOT
        finally:
            child.kill()
            child.wait()


def test_one_that_takes_no_requests_may_be_stopped(folder: Path) -> None:
    server = SnapshotServer(socket_path(folder, os.getpid()), lambda: SNAPSHOT)
    waiting = []
    try:
        for _ in range(5):
            waiting.append(socket.socket(socket.AF_UNIX))
            waiting[-1].connect(str(socket_path(folder, os.getpid())))
        with pytest.raises(InputError, match="does not take requests; it may be stopped"):
            request_snapshot(os.getpid(), timeout_seconds=0.2)
    finally:
        for each in waiting:
            each.close()
        server.close()


def test_another_users_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(InputError, match="another user's"):
        request_snapshot(1)


def test_another_users_request_gets_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(folder, lambda: SNAPSHOT), socket.socket(socket.AF_UNIX) as asking:
        monkeypatch.setattr(module, "_peer", lambda _: (1, 12345))
        asking.connect(str(socket_path(folder, os.getpid())))
        asking.settimeout(120)
        # the other side may already have closed the connection
        with suppress(ConnectionResetError, BrokenPipeError):
            asking.sendall(b"snapshot\n")
            assert asking.recv(1) == b""


@pytest.mark.parametrize("request_", [b"hello\n", b"snap", b"\0" * 100])
def test_who_asks_for_something_else_gets_nothing(folder: Path, request_: bytes) -> None:
    with serving(folder, lambda: SNAPSHOT), socket.socket(socket.AF_UNIX) as asking:
        asking.connect(str(socket_path(folder, os.getpid())))
        asking.sendall(request_)
        asking.settimeout(120)
        with suppress(ConnectionResetError):
            assert asking.recv(1) == b""
        assert pickle.loads(request_snapshot(os.getpid())) == SNAPSHOT


def test_a_client_that_goes_away_harms_nobody(folder: Path) -> None:
    with serving(folder, lambda: {"text": "x" * 5_000_000}):
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(str(socket_path(folder, os.getpid())))
            asking.sendall(b"snapshot\n")
        assert len(request_snapshot(os.getpid())) > 5_000_000


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "closed the connection"),
        (b'{"size": 100}\nshort', "closed the connection"),
        (b"hello\n", "an answer that cannot be read"),
        (b"[1]\n", "an answer that cannot be read"),
        (b'{"size": "many"}\n', "an answer that cannot be read"),
        (b'{"size": -5}\n', "an answer that cannot be read"),
        (b"x" * 10_000, "an answer that cannot be read"),
    ],
)
def test_what_is_no_answer_is_refused(folder: Path, answer: bytes, message: str) -> None:
    with answering(folder, answer), pytest.raises(InputError, match=message):
        request_snapshot(os.getpid())


BREAKS_OFF = ROOT / "tests" / "programs" / "telemetry" / "breaks_off.py"


@pytest.mark.parametrize(
    ("what", "patience", "message"),
    [("die", 120, "it died while it answered"), ("hang", 0.5, "did not answer within 0.5")],
)
def test_a_process_that_breaks_off(
    folder: Path, what: str, patience: float, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_DYING_SECONDS", 120)
    child = subprocess.Popen(
        [sys.executable, str(BREAKS_OFF), str(folder), what], stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    with child.stdout:
        child.stdout.readline()
        try:
            with pytest.raises(InputError, match=message):
                request_snapshot(child.pid, timeout_seconds=patience)
        finally:
            child.kill()
            child.wait()
