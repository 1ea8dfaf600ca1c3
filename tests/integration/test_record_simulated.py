"""Recording PyTorch programs on simulated GPUs: by the command, by the environment, in programs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from plimsoll import InputError, explain, replay
from plimsoll.gpus import gpu_profile
from plimsoll.page.device_view import make_device_view
from plimsoll.recordings import Action, Recording, read_recording, write_parquet
from tests.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch")

TRAIN = """
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
def train(steps):
    for _ in range(steps):
        model(torch.randn(64, 256, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(TRAIN + "train(3)\n")
    return path


def simulate(
    *arguments: str | Path, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "plimsoll", "run", "--simulate", "H100"]
    return subprocess.run(
        [*command, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, **environment},
    )


def lines_of(recording: Recording, script: Path) -> set[int]:
    """The script's lines on the stacks of requests."""
    (trace,) = recording.devices
    events = trace.load()
    stacks = np.unique(events.stack[events.action == Action.ALLOC]).tolist()
    return {line for n in stacks for file, line, _ in trace.frames(n) if file == str(script)}


def test_the_command_records_a_script_that_knows_nothing_of_it(
    script: Path, tmp_path: Path
) -> None:
    done = simulate("--record", tmp_path / "run.plim", script)
    assert done.returncode == 0, done.stderr
    recording = read_recording(tmp_path / "run.plim")
    assert recording.is_whole
    assert recording.dropped == 0
    assert f"next: plimsoll explain {tmp_path / 'run.plim'}" in done.stderr.splitlines()
    assert [mark.name for mark in recording.marks] == ["step"] * 3
    assert {3, 7, 8} <= lines_of(recording, script)
    (result,) = replay(recording)
    assert result.matches_recording is True


def test_a_recording_names_its_card(script: Path, tmp_path: Path) -> None:
    done = simulate("--record", tmp_path / "run.plim", script)
    assert done.returncode == 0, done.stderr
    recording = read_recording(tmp_path / "run.plim")
    write_parquet(recording, tmp_path / "run.parquet")
    for file in ("run.plim", "run.parquet"):
        card = explain(tmp_path / file, advice=False).card
        assert (card.gpu, card.total_bytes) == ("H100", gpu_profile("H100").total_bytes)
        assert card.context_bytes == gpu_profile("H100").context_bytes
    assert explain(tmp_path / "run.plim", gpu="RTX 4090", advice=False).card.gpu == "RTX 4090"
    notes = make_device_view(recording, recording.devices[0]).notes
    assert "Recorded on H100, which has 79.18 GiB." in notes
    (other,) = replay(recording, conf="expandable_segments:True")
    assert (other.gpu, other.limit_source) == ("H100", "card")


def test_recording_changes_nothing(script: Path, tmp_path: Path) -> None:
    script.write_text(TRAIN + "train(3)\nprint(torch.cuda.memory_stats())\n")
    plain = simulate(script)
    recorded = simulate("--record", tmp_path / "run.plim", script)
    assert recorded.stdout == plain.stdout
    assert "allocated_bytes.all.peak" in plain.stdout


def test_the_environment_does_the_same(script: Path, tmp_path: Path) -> None:
    done = simulate(script, cwd=tmp_path, PLIMSOLL_RECORD="run.plim")
    assert done.returncode == 0, done.stderr
    assert len(read_recording(tmp_path / "run.plim").marks) == 3


def test_processes_that_a_program_starts_have_files_of_their_own(
    script: Path, tmp_path: Path
) -> None:
    (tmp_path / "twice.py").write_text(
        "import subprocess, sys, torch\n"
        "kept = torch.empty(8, device='cuda')\n"
        "sys.exit(subprocess.call([sys.executable, '-m', 'plimsoll', 'run', '--simulate', 'H100',\n"
        f"                          {str(script)!r}]))\n"
    )
    done = simulate("--record", tmp_path / "run.plim", tmp_path / "twice.py")
    assert done.returncode == 0, done.stderr
    files = sorted(tmp_path.glob("*.plim"), key=lambda path: len(path.name))
    assert files[0].name == "run.plim"
    assert [len(read_recording(path).marks) for path in files] == [0, 3]


def test_a_rank_has_a_file_of_its_own(script: Path, tmp_path: Path) -> None:
    done = simulate("--record", tmp_path / "run.plim", script, RANK="3")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.glob("*.plim")] == ["run.rank3.plim"]


def test_a_file_that_exists_is_refused_before_the_script_runs(script: Path, tmp_path: Path) -> None:
    (tmp_path / "run.plim").write_text("mine")
    script.write_text("print('started')\n")
    done = simulate("--record", tmp_path / "run.plim", script)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"plimsoll: {tmp_path / 'run.plim'}: exists already and is not overwritten\n"
    )


def test_a_script_that_fails_leaves_a_whole_file(script: Path, tmp_path: Path) -> None:
    script.write_text(TRAIN + "train(1)\ntorch.empty(100 << 30, dtype=torch.uint8, device='cuda')")
    done = simulate("--record", tmp_path / "run.plim", script)
    assert done.returncode == 1
    assert "OutOfMemoryError" in done.stderr
    recording = read_recording(tmp_path / "run.plim")
    assert recording.is_whole
    assert (recording.devices[0].load().action == Action.OOM).sum() == 1


def test_programs_record_a_part_of_themselves(script: Path, tmp_path: Path) -> None:
    script.write_text(
        "import plimsoll\n" + TRAIN + "train(2)\n"
        "with plimsoll.record('part.plim') as recording:\n"
        "    train(2)\n"
        "    recording.mark('evaluation')\n"
        "    model(torch.randn(64, 256, device='cuda'))\n"
        "train(2)\n"
    )
    done = simulate(script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    recording = read_recording(tmp_path / "part.plim")
    assert [mark.name for mark in recording.marks] == ["step", "step", "evaluation"]
    (trace,) = recording.devices
    assert trace.start("", "2.13")
    assert replay(recording)[0].matches_recording is True


def test_a_recording_may_begin_before_pytorch_is_imported(script: Path, tmp_path: Path) -> None:
    script.write_text(
        f"import plimsoll\nwith plimsoll.record('run.plim'):\n    exec({TRAIN + 'train(2)'!r})\n"
    )
    done = simulate(script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(read_recording(tmp_path / "run.plim").marks) == 2


def test_pytorchs_own_history_goes_on_beside_it(script: Path, tmp_path: Path) -> None:
    script.write_text(
        TRAIN + "torch.cuda.memory._record_memory_history()\ntrain(1)\n"
        "torch.cuda.memory._dump_snapshot('snapshot.pickle')\n"
        "torch.cuda.memory._record_memory_history(enabled=None)\ntrain(1)\n"
    )
    done = simulate("--record", "run.plim", script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    snapshot = read_recording(tmp_path / "snapshot.pickle").devices[0].load()
    recorded = read_recording(tmp_path / "run.plim").devices[0]
    events = recorded.load()
    begin = int(np.flatnonzero(events.time_us == snapshot.time_us[0])[0])
    assert (events.address[begin : begin + len(snapshot)] == snapshot.address).all()
    assert recorded.frames(int(events.stack[events.action == Action.ALLOC][-1]))


def test_each_gpu_is_recorded(script: Path, tmp_path: Path) -> None:
    script.write_text(
        "import torch\n"
        "for device in (0, 1):\n"
        "    kept = [torch.empty(1 << 20, device=device) for _ in range(10 + device)]\n"
    )
    done = simulate("--gpus", "2", "--record", tmp_path / "run.plim", script)
    assert done.returncode == 0, done.stderr
    counts = [
        int((trace.load().action == Action.ALLOC).sum())
        for trace in read_recording(tmp_path / "run.plim").devices
    ]
    assert counts == [10, 11]


def test_a_killed_script_leaves_a_file_that_opens(script: Path, tmp_path: Path) -> None:
    script.write_text(TRAIN + "print('training', flush=True)\ntrain(1_000_000)\n")
    command = [sys.executable, "-m", "plimsoll", "run", "--simulate", "H100"]
    path = tmp_path / "run.plim"
    with subprocess.Popen(
        [*command, "--record", str(path), str(script)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "training\n"
        try:
            wait_for(lambda: has_steps(path))
        finally:
            os.killpg(child.pid, signal.SIGKILL)
    recording = read_recording(path)
    assert not recording.is_whole
    assert len(recording.marks) > 2
    assert {7, 8} <= lines_of(recording, script)
    assert replay(path)[0].num_ooms == 0


def has_steps(path: Path) -> bool:
    try:
        return len(read_recording(path).marks) > 2
    except InputError:
        return False
