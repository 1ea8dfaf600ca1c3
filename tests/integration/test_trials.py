"""Tests that `predict` and `fit` discard what scripts write, unless `keep_writes` is set."""

from __future__ import annotations

import json
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plimsoll.base.errors import ScriptError
from plimsoll.prediction.fitting.values import fit
from plimsoll.prediction.predict import predict
from plimsoll.prediction.trials.kinds import Kind
from plimsoll.prediction.trials.offered import offered
from plimsoll.prediction.trials.written import Written
from tests.commands import run_plimsoll
from tests.simulated import PROGRAMS, simulate

torch = pytest.importorskip("torch")

CHECKPOINTS = PROGRAMS / "prediction" / "checkpoints.py"


class Tracker:
    """A server that counts its connections."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = str(self._server.getsockname()[1])
        self.calls = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            client.close()
            self.calls += 1

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()


@pytest.fixture
def tracker() -> Iterator[Tracker]:
    tracker = Tracker()
    yield tracker
    tracker.close()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes a folder in which the script has run before."""
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.pt").write_bytes(b"the work of a week")
    (tmp_path / "metrics.csv").write_text("step,loss\n")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "events").write_bytes(b"events")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return tmp_path


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
            for path in folder.rglob("*")}  # fmt: skip


@pytest.mark.long
def test_predict_leaves_no_trace_and_lists_what_was_written(
    project: Path, tracker: Tracker
) -> None:
    before = contents(project)
    # The script does not fit on a T4. So plimsoll runs it a second time, on a T4 with unlimited
    # memory.
    found = predict(CHECKPOINTS, [tracker.port, "100"], gpu="T4")
    assert not found.fits
    assert contents(project) == before
    assert tracker.calls == 0
    kinds = {one.path: one.kind for one in found.written}
    assert kinds == {
        "all.tar": "new",
        "checkpoints/before.pt": "new",
        "checkpoints/last.pt": "changed",
        "finished": "new",
        "metrics.csv": "changed",
        "runs": "removed",
        "train.log": "new",
        "weights.npy": "new",
    }
    sizes = [one.bytes for one in found.written]
    assert sizes == sorted(sizes, reverse=True)
    assert Written("runs", 6, "removed") in found.written
    assert type(found).from_dict(found.to_dict()) == found
    text = str(found)
    assert "\n\nThe script wrote these files, and plimsoll discarded them:\n" in text
    assert "all.tar\n" in text
    assert "  and 2 more\n" in text


@pytest.mark.long
def test_fit_leaves_no_trace(project: Path, tracker: Tracker) -> None:
    before = contents(project)
    found = fit(CHECKPOINTS, "--vary", [tracker.port, "0"], gpu="T4", at_most=2)
    assert found.largest == 2
    kinds = {one.path: one.kind for one in found.written}
    assert kinds["runs"] == "removed"
    assert kinds["checkpoints/last.pt"] == "changed"
    # each path is listed once, although two trials wrote it
    assert len(kinds) == len(found.written)
    assert "\n\nThe script wrote these files, and plimsoll discarded them:\n" in str(found)
    assert contents(project) == before
    assert tracker.calls == 0


@pytest.mark.long
@pytest.mark.parametrize("run", [lambda *given: predict(*given, keep_writes=True), simulate])
def test_writes_stay_where_that_is_wanted(
    run: Callable[..., object], project: Path, tracker: Tracker
) -> None:
    if run is simulate:
        simulate(CHECKPOINTS, arguments=[tracker.port, "0"], folder=project)
    else:
        assert run(CHECKPOINTS, [tracker.port, "0"]).written == []  # type: ignore[attr-defined]
    assert (project / "finished").exists()
    assert (project / "checkpoints" / "before.pt").read_bytes() == b"the work of a week"
    assert torch.load(project / "checkpoints" / "last.pt", map_location="cpu")["step"] == 2
    assert not (project / "runs").exists()
    assert tracker.calls == 3


@pytest.mark.long
def test_processes_of_the_script_write_to_the_layer_too(project: Path) -> None:
    before = contents(project)
    done = run_plimsoll("predict", "--json", PROGRAMS / "prediction/workers.py")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["written"] == [
        {"path": "worker.log", "bytes": 64, "kind": "new"},
        {"path": "ranks/rank-0", "bytes": 1, "kind": "new"},
        {"path": "ranks/rank-1", "bytes": 1, "kind": "new"},
    ]
    # PyTorch's server process for shared memory can outlive the script. When the server ends, it
    # deletes its own files, which plimsoll has already discarded. If that deletion failed, the
    # server would print "terminate".
    assert "terminate" not in done.stderr
    assert contents(project) == before


def test_a_script_that_fails_because_a_hub_is_offline_is_told_so(project: Path) -> None:
    script = project / "load.py"
    script.write_text(
        "import os\n"
        "class OfflineModeIsEnabled(ConnectionError): pass\n"
        "try:\n"
        "    if os.environ['HF_HUB_OFFLINE'] == '1': raise OfflineModeIsEnabled('no way')\n"
        "except ConnectionError as error:\n"
        "    raise OSError('there is no such model') from error\n"
    )
    with pytest.raises(ScriptError) as failure:
        predict(script)
    assert failure.value.missed_network
    assert str(failure.value).startswith(
        f"{script} failed because plimsoll runs scripts offline: download what the script loads "
        "beforehand, or let it reach other machines with --network"
    )


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the program is machine code")
@pytest.mark.parametrize("kind", Kind)
def test_calls_of_the_kernel_without_libc_are_kept_apart(
    project: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind not in offered():
        pytest.skip(f"this machine offers no {kind}")
    monkeypatch.setenv("PLIMSOLL_TRIAL", kind)
    before = contents(project)
    found = predict(PROGRAMS / "prediction" / "raw_calls.py")
    assert {one.path: one.bytes for one in found.written} == {
        "first": 5, "forked": 6, "opened": 4, "second": 6,
    }  # fmt: skip
    assert contents(project) == before


def test_a_script_without_cuda_has_its_writes_listed_too(project: Path) -> None:
    script = project / "script.py"
    script.write_text("open('result.txt', 'w').write('x')\n")
    found = predict(script)
    assert found.written == [Written("result.txt", 1, "new")]
    assert "result.txt" in str(found)
    assert not (project / "result.txt").exists()


def test_a_download_fails_at_once_and_the_answer_says_what_helps(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if Kind.OVERLAY not in offered():
        pytest.skip("this machine offers no overlay")
    monkeypatch.setenv("PLIMSOLL_TRIAL", Kind.OVERLAY)
    script = project / "load.py"
    script.write_text("import socket\nsocket.create_connection(('192.0.2.1', 80))\n")
    with pytest.raises(ScriptError, match=r"plimsoll runs scripts offline.*--network"):
        predict(script)


HOLDS_ON = """
import subprocess, sys, time
from multiprocessing.shared_memory import SharedMemory
kept = SharedMemory(create=True, size=100)
daemon = subprocess.Popen(["/bin/sleep", "300"], start_new_session=True)
open("large", "wb").write(bytes(1 << 20))
print("ready", kept.name, daemon.pid, flush=True)
time.sleep(300)
"""


def heed_signals() -> None:
    """Restores default signal handling. A process under nohup starts with SIGHUP ignored."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, signal.SIGHUP])
@pytest.mark.parametrize("kind", [Kind.OVERLAY, Kind.WALL])
def test_a_signal_to_plimsoll_alone_leaves_nothing_behind(
    project: Path, tmp_path: Path, kind: Kind, number: signal.Signals
) -> None:
    if kind not in offered():
        pytest.skip(f"this machine offers no {kind}")
    (project / "holds_on.py").write_text(HOLDS_ON)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "plimsoll", "predict", "holds_on.py"],
        env={**os.environ, "TMPDIR": str(temporary), "PLIMSOLL_TRIAL": kind},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=heed_signals,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        said = next(line for line in process.stderr if line.startswith("ready"))
        _, name, daemon = said.split()
        process.send_signal(number)
        process.wait(60)
    wait_until(lambda: not any(temporary.iterdir()))
    assert not Path("/dev/shm", name).exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int(daemon), 0)


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.long
def test_a_fit_says_what_its_trials_were_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if Kind.WALL not in offered():
        pytest.skip("this machine offers no wall")
    monkeypatch.setenv("PLIMSOLL_TRIAL", Kind.WALL)
    script = project / "writes.py"
    script.write_text(
        "import os, sys, torch\n"
        "os.environ.pop('LD_PRELOAD', None)\n"
        "os.system('echo hi > refused.txt')\n"
        "torch.zeros(int(sys.argv[2]) << 20, device='cuda')\n"
    )
    found = fit(script, "--batch-size", ["--batch-size", "8"], gpu="T4:2GiB", at_most=16)
    assert found.kept_apart is not None
    assert [Path(one.path).name for one in found.kept_apart.refused] == ["refused.txt"]
    assert "plimsoll refused these writes, because it cannot discard them" in str(found)
    assert not (project / "refused.txt").exists()
