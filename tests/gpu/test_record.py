"""Tests `plimsoll.record` on a real GPU, under PyTorch's own allocator and plimsoll's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from plimsoll import InputError, replay
from plimsoll.recordings.events import Action
from plimsoll.recordings.reading import read_recording
from plimsoll.recordings.recording import Recording
from tests.recordings import ROOT
from tests.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU"),
]

ALLOCATORS = ["torch", "native", "elastic"]
PROGRAM = ROOT / "tests" / "programs" / "recorder" / "trains_on_a_gpu.py"


def run(
    name: str, folder: Path, allocator: str = "torch", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs the function `name` of the script `PROGRAM` in a new process."""
    environment = {**os.environ, "PLIMSOLL_ALLOCATOR": allocator, **environment}
    return subprocess.run(
        [sys.executable, str(PROGRAM), name],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=environment,
    )


def recorded(name: str, folder: Path, allocator: str = "torch") -> Recording:
    done = run(name, folder, allocator)
    assert done.returncode == 0, done.stderr
    return read_recording(folder / "run.plim")


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_training_is_recorded(allocator: str, tmp_path: Path) -> None:
    recording = recorded(
        "five_steps",
        tmp_path,
        allocator,
    )
    assert recording.is_whole
    assert [mark.name for mark in recording.marks] == ["step"] * 5
    (trace,) = recording.devices
    assert trace.start("", "2.13") == []
    events = trace.load()
    # Each thread reads the clock for its own events, so times may be slightly out of order.
    assert (np.diff(events.time_us) >= -1000).all()
    stacks = np.unique(events.stack[events.action == Action.ALLOC]).tolist()
    script = str(PROGRAM)
    functions = {name for n in stacks for file, _, name in trace.frames(n) if file == script}
    assert {"make", "train", "<module>"} <= functions


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_what_pytorchs_allocator_did_is_replayed_to_the_address(conf: str, tmp_path: Path) -> None:
    done = run(
        "around_an_emptied_cache",
        tmp_path,
        PYTORCH_CUDA_ALLOC_CONF=conf,
    )
    assert done.returncode == 0, done.stderr
    (result,) = replay(tmp_path / "run.plim")
    assert result.matches_recording is True, result.first_difference


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_the_events_are_those_of_pytorchs_own_history(allocator: str, tmp_path: Path) -> None:
    recording = recorded(
        "beside_pytorchs_own_history",
        tmp_path,
        allocator,
    )
    theirs = read_recording(tmp_path / "snapshot.pickle").devices[0].load()
    theirs = theirs[theirs.action != Action.SNAPSHOT]
    ours = recording.devices[0].load()
    (begin, *_) = np.flatnonzero(theirs.address == ours.address[0])
    for name in ("action", "address", "size", "stream"):
        part = getattr(theirs, name)[begin : begin + len(ours)]
        assert (part == getattr(ours, name)).all(), name


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_a_second_recording_has_its_own_events(allocator: str, tmp_path: Path) -> None:
    recording = recorded(
        "twice",
        tmp_path,
        allocator,
    )
    first = read_recording(tmp_path / "first.plim")
    assert (len(first.marks), len(recording.marks)) == (2, 1)
    assert recording.devices[0].start("", "2.13")
    assert recording.devices[0].load().stack.any()


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_pytorchs_own_history_comes_first(allocator: str, tmp_path: Path) -> None:
    done = run(
        "until_pytorch_records",
        tmp_path,
        allocator,
    )
    assert done.returncode == 0, done.stderr
    assert "call stacks are not recorded from now on" in done.stderr
    recording = read_recording(tmp_path / "run.plim")
    events = recording.devices[0].load()
    (first, second) = (mark.event for mark in recording.marks)
    assert events.stack[:first].any()
    assert not events.stack[first + 1 : second].any()
    assert read_recording(tmp_path / "snapshot.pickle").devices[0].load().stack.any()


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_an_out_of_memory_error_is_an_event_with_its_stack(allocator: str, tmp_path: Path) -> None:
    recording = recorded(
        "out_of_memory",
        tmp_path,
        allocator,
    )
    (trace,) = recording.devices
    events = trace.load()
    (stack,) = events.stack[events.action == Action.OOM]
    assert trace.frames(int(stack))[1][2] == "ask"


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_graphs_and_pools_are_recorded(allocator: str, tmp_path: Path) -> None:
    recording = recorded(
        "graphs",
        tmp_path,
        allocator,
    )
    events = recording.devices[0].load()
    in_pools = (events.pool_first != 0) | (events.pool_second != 0)
    assert (in_pools & (events.action == Action.ALLOC)).any()


def test_threads_of_backward_and_of_the_program_are_recorded(tmp_path: Path) -> None:
    recording = recorded(
        "threads",
        tmp_path,
    )
    assert len(recording.marks) == 20
    assert recording.dropped == 0
    (result,) = replay(recording)
    assert result.matches_recording is True, result.first_difference


def test_memory_that_spilled_is_noted(tmp_path: Path) -> None:
    done = run(
        "spill",
        tmp_path,
        "elastic",
        PLIMSOLL_POLICY="spill",
        PLIMSOLL_DEDICATED="1GiB",
    )
    assert done.returncode == 0, done.stderr
    events = read_recording(tmp_path / "run.plim").devices[0].load()
    assert events.shared[events.action == Action.ALLOC].sum() >= 1 << 30


def test_a_backend_without_a_history_is_refused(tmp_path: Path) -> None:
    done = run(
        "refused",
        tmp_path,
        PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync",
    )
    assert done.stdout == "PyTorch's allocator cudaMallocAsync tells nobody what it does\n"
    assert not (tmp_path / "run.plim").exists()


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_the_command_records_a_script(allocator: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "plimsoll", "run", "--allocator", allocator]
    done = subprocess.run(
        [*command, "--record", str(tmp_path / "run.plim"), str(PROGRAM), "unrecorded_steps"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    recording = read_recording(tmp_path / "run.plim")
    assert recording.is_whole
    assert len(recording.marks) == 3
    assert recording.devices[0].start("", "2.13") == []


def test_a_killed_program_leaves_a_file_that_opens(tmp_path: Path) -> None:
    path = tmp_path / "run.plim"
    with subprocess.Popen([sys.executable, str(PROGRAM), "until_killed"], cwd=tmp_path) as child:
        wait_for(lambda: steps_in(path) >= 100)
        child.send_signal(signal.SIGKILL)
    recording = read_recording(path)
    assert not recording.is_whole
    assert len(recording.marks) >= 100
    assert replay(recording)[0].num_ooms == 0


def steps_in(path: Path) -> int:
    try:
        return len(read_recording(path).marks)
    except InputError:
        return 0
