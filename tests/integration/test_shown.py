"""Tests that the command prints untrusted text safely on terminals of any encoding."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = "\x1b[2J\x1b]0;owned\x07\u202egpj.\u2066\r\n\tnaïve 中 \x9b"
TERMINALS = {
    "UTF-8": {"PYTHONIOENCODING": "utf-8"},
    "ASCII": {"PYTHONIOENCODING": "ascii"},
    "Latin-1": {"PYTHONIOENCODING": "latin-1"},
    "C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}


def plimsoll(
    *arguments: str | Path, cwd: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "plimsoll", *map(str, arguments)],
        capture_output=True, check=False, cwd=cwd, env={**os.environ, **environment},
    )  # fmt: skip


def snapshot(conf: str = "") -> dict[str, Any]:
    frames = [{"filename": f"/home/me/{HOSTILE}.py", "line": 1, "name": HOSTILE}]
    event = {
        "action": "alloc", "addr": 4096, "size": 3 << 20, "stream": 0, "time_us": 1,
        "frames": frames,
    }  # fmt: skip
    settings = {"PYTORCH_CUDA_ALLOC_CONF": conf}
    return {"segments": [], "device_traces": [[event]], "allocator_settings": settings}


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / f"{HOSTILE.replace('/', '')}.pickle"
    path.write_bytes(pickle.dumps(snapshot()))
    return path


def assert_harmless(shown: bytes) -> None:
    for encoding in ("ascii", "utf-8", "latin-1"):
        try:
            text = shown.decode(encoding)
            break
        except UnicodeDecodeError:
            pass
    assert [line for line in text.split("\n") if not line.isprintable()] == []


VERBS = {
    "replay": ["replay"],
    "explain": ["explain", "--no-advice"],
    "view": ["view"],
    "csv": ["view", "--export", "csv"],
    "perfetto": ["view", "--export", "perfetto"],
    "an unknown export": ["view", "--export", HOSTILE],
    "an unknown option": ["replay", f"--{HOSTILE}"],
    "a wrong size": ["replay", "--limit", HOSTILE],
}


@pytest.mark.parametrize("terminal", TERMINALS)
@pytest.mark.parametrize("verb", VERBS)
def test_a_recording_cannot_command_the_terminal(verb: str, terminal: str, recording: Path) -> None:
    done = plimsoll(*VERBS[verb], recording, cwd=recording.parent, environment=TERMINALS[terminal])
    assert_harmless(done.stdout)
    assert_harmless(done.stderr)
    assert b"Traceback" not in done.stderr
    assert b"gpj" in done.stdout + done.stderr
    assert done.returncode == (2 if verb.startswith("a") else 0), done.stderr


@pytest.mark.parametrize("terminal", TERMINALS)
@pytest.mark.parametrize(
    ("conf", "told"),
    [("naïve中:1", b"unknown key"), ("\u202e\x1b\r\nnaïve中:1", b"no text that it can be")],
)
def test_what_is_wrong_with_a_recording_is_one_harmless_line(
    conf: str, told: bytes, terminal: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.pickle"
    path.write_bytes(pickle.dumps(snapshot(conf=conf)))
    done = plimsoll("replay", path, cwd=tmp_path, environment=TERMINALS[terminal])
    assert done.returncode == 2
    assert_harmless(done.stderr)
    assert done.stderr.count(b"\n") == 1
    assert told in done.stderr


@pytest.mark.parametrize("terminal", TERMINALS)
@pytest.mark.parametrize("arguments", [["--help"], ["gpus"], ["top", "--once"]])
def test_every_terminal_gets_text(arguments: list[str], terminal: str, tmp_path: Path) -> None:
    done = plimsoll(*arguments, cwd=tmp_path, environment=TERMINALS[terminal])
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 0
    assert b"Traceback" not in done.stderr
