"""Tests recordings on simulated GPUs: an option, a variable or the program itself starts them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from plimsoll import InputError, explain, replay
from plimsoll.engine.gpus.profiles import gpu_profile
from plimsoll.page.device_view import make_device_view
from plimsoll.recordings.events import Action
from plimsoll.recordings.parquet import write_parquet
from plimsoll.recordings.reading import read_recording
from plimsoll.recordings.recording import Recording
from tests.simulated import PROGRAMS, simulate
from tests.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch")

TRAINS = PROGRAMS / "recorder" / "trains.py"


def run(
    program: Path | str, folder: Path, *options: str | Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs a program, or a function of `trains.py`, with `plimsoll run` on a simulated H100."""
    arguments = [program] if isinstance(program, str) else []
    path = TRAINS if isinstance(program, str) else program
    return simulate(
        path,
        *map(str, options),
        arguments=arguments,
        gpu="H100",
        folder=folder,
        environment=environment,
    )


def line(text: str) -> int:
    """Returns the number of the line of `trains.py` that has this text."""
    lines = TRAINS.read_text().splitlines()
    (number,) = (number for number, line in enumerate(lines, 1) if text in line)
    return number


def lines_of_a_step() -> set[int]:
    return {line("# forward, backward"), line("# the optimizer")}


def lines_of(recording: Recording) -> set[int]:
    """Returns the line numbers of `trains.py` in the call stacks of the recorded allocations."""
    (trace,) = recording.devices
    events = trace.load()
    stacks = np.unique(events.stack[events.action == Action.ALLOC]).tolist()
    return {line for n in stacks for file, line, _ in trace.frames(n) if file == str(TRAINS)}


def test_a_recording_ends_before_the_programs_variables_do(tmp_path: Path) -> None:
    script = tmp_path / "keeps.py"
    script.write_text(
        "import atexit, gc, torch\n"
        "atexit.register(gc.collect)\n"
        "kept = [torch.empty(1 << 20, device='cuda')]\n"
        "kept.append(kept)\n"
    )
    command = ["run", "--simulate", "H100", "--record", "run.plim", "keeps.py"]
    subprocess.run([sys.executable, "-m", "plimsoll", *command], cwd=tmp_path, check=True)
    (trace,) = read_recording(tmp_path / "run.plim").devices
    assert Action.ALLOC in trace.load().action
    assert Action.FREE_REQUESTED not in trace.load().action


@pytest.mark.long
def test_the_command_records_a_script_that_knows_nothing_of_it(tmp_path: Path) -> None:
    done = run("three_steps", tmp_path, "--record", tmp_path / "run.plim")
    assert done.returncode == 0, done.stderr
    recording = read_recording(tmp_path / "run.plim")
    assert recording.is_whole
    assert recording.dropped == 0
    assert f"next: plimsoll explain {tmp_path / 'run.plim'}" in done.stderr.splitlines()
    assert [mark.name for mark in recording.marks] == ["step"] * 3
    assert lines_of(recording) >= {line("model = "), *lines_of_a_step()}
    (result,) = replay(recording)
    assert result.matches_recording is True


@pytest.mark.parametrize(
    ("allocator", "empties"),
    [
        pytest.param("elastic", True, marks=pytest.mark.long),
        ("elastic", False),
        pytest.param("uncached", False, marks=pytest.mark.long),
    ],
)
def test_a_recording_of_another_allocator_is_replayed_as_one_of_pytorchs_own(
    allocator: str, empties: bool, tmp_path: Path
) -> None:
    script = tmp_path / "churns.py"
    script.write_text(
        "import torch\n"
        "kept = []\n"
        "for step in range(40):\n"
        "    sizes = [(4 + (step * i) % 23) << 20 for i in range(1, 12)]\n"
        "    live = [torch.empty(size, dtype=torch.uint8, device='cuda') for size in sizes]\n"
        "    kept.append(live.pop(step % 7)[: 1 << 20].clone())\n"
        f"    if {empties} and step == 25:\n"
        "        del live\n"
        "        torch.cuda.empty_cache()\n"
    )
    recordings = {}
    for name in ("native", allocator):
        done = run(script, tmp_path, "--allocator", name, "--record", f"{name}.plim")
        assert done.returncode == 0, done.stderr
        recordings[name] = read_recording(tmp_path / f"{name}.plim")
    (own,), (other,) = (replay(recording) for recording in recordings.values())
    assert own.matches_recording is True
    assert other.matches_recording is None
    assert other.peak_allocated_bytes == own.peak_allocated_bytes
    assert other.peak_reserved_bytes == own.peak_reserved_bytes
    assert len(own.emptied_caches) == len(other.emptied_caches) == empties


@pytest.mark.long
def test_a_recording_names_its_card(tmp_path: Path) -> None:
    done = run("three_steps", tmp_path, "--record", tmp_path / "run.plim")
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


@pytest.mark.long
def test_recording_changes_nothing(tmp_path: Path) -> None:
    plain = run("and_print_the_statistics", tmp_path)
    recorded = run("and_print_the_statistics", tmp_path, "--record", tmp_path / "run.plim")
    assert recorded.stdout == plain.stdout
    assert "allocated_bytes.all.peak" in plain.stdout


@pytest.mark.long
def test_the_environment_does_the_same(tmp_path: Path) -> None:
    done = run("three_steps", tmp_path, PLIMSOLL_RECORD="run.plim")
    assert done.returncode == 0, done.stderr
    assert len(read_recording(tmp_path / "run.plim").marks) == 3


@pytest.mark.long
def test_processes_that_a_program_starts_have_files_of_their_own(tmp_path: Path) -> None:
    done = run("in_a_process_of_its_own", tmp_path, "--record", tmp_path / "run.plim")
    assert done.returncode == 0, done.stderr
    files = sorted(tmp_path.glob("*.plim"), key=lambda path: len(path.name))
    assert files[0].name == "run.plim"
    assert [len(read_recording(path).marks) for path in files] == [0, 3]


@pytest.mark.long
def test_a_rank_has_a_file_of_its_own(tmp_path: Path) -> None:
    done = run("three_steps", tmp_path, "--record", tmp_path / "run.plim", RANK="3")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.glob("*.plim")] == ["run.rank3.plim"]
    # Here the environment asks for the recording, as if a launcher had set PLIMSOLL_RECORD.
    again = run("three_steps", tmp_path, RANK="3", PLIMSOLL_RECORD="run.plim")
    assert again.returncode == 0, again.stderr
    files = sorted(path.name for path in tmp_path.glob("*.plim"))
    assert files == ["run.rank3-2.plim", "run.rank3.plim"]


def test_a_file_that_exists_is_refused_before_the_script_runs(tmp_path: Path) -> None:
    (tmp_path / "run.plim").write_text("mine")
    done = run("and_print_the_statistics", tmp_path, "--record", tmp_path / "run.plim")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"plimsoll: {tmp_path / 'run.plim'}: exists already and is not overwritten; "
        "name another file\n"
    )


@pytest.mark.long
def test_a_script_that_fails_leaves_a_whole_file(tmp_path: Path) -> None:
    done = run("until_memory_is_out", tmp_path, "--record", tmp_path / "run.plim")
    assert done.returncode == 1
    assert "OutOfMemoryError" in done.stderr
    recording = read_recording(tmp_path / "run.plim")
    assert recording.is_whole
    assert (recording.devices[0].load().action == Action.OOM).sum() == 1


@pytest.mark.long
def test_programs_record_a_part_of_themselves(tmp_path: Path) -> None:
    done = run("and_record_a_part", tmp_path)
    assert done.returncode == 0, done.stderr
    recording = read_recording(tmp_path / "part.plim")
    assert [mark.name for mark in recording.marks] == ["step", "step", "evaluation"]
    (trace,) = recording.devices
    assert trace.start("", "2.13")
    assert replay(recording)[0].matches_recording is True


def test_both_parts_of_a_recording_with_a_limit_are_exact(tmp_path: Path) -> None:
    done = run("and_keep_the_newest_events", tmp_path)
    assert done.returncode == 0, done.stderr
    newest = read_recording(tmp_path / "part.plim")
    assert newest.earlier is not None
    assert newest.earlier.uncertain_blocks == 0
    for recording in (read_recording(tmp_path / "part.earlier.plim"), newest):
        assert recording.is_whole
        assert replay(recording)[0].matches_recording is True
        sizes = explain(recording.name, advice=False).peak.by_category
        assert sizes["parameters"] == 4 * (256 * 256 + 256) * 4
        assert sizes["optimizer_state"] >= 2 * sizes["parameters"]


@pytest.mark.long
def test_a_recording_may_begin_before_pytorch_is_imported(tmp_path: Path) -> None:
    done = run(TRAINS.with_name("before_torch.py"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(read_recording(tmp_path / "run.plim").marks) == 2


@pytest.mark.long
def test_pytorchs_own_history_goes_on_beside_it(tmp_path: Path) -> None:
    done = run("beside_pytorchs_own_history", tmp_path, "--record", "run.plim")
    assert done.returncode == 0, done.stderr
    snapshot = read_recording(tmp_path / "snapshot.pickle").devices[0].load()
    recorded = read_recording(tmp_path / "run.plim").devices[0]
    events = recorded.load()
    begin = int(np.flatnonzero(events.time_us == snapshot.time_us[0])[0])
    assert (events.address[begin : begin + len(snapshot)] == snapshot.address).all()
    assert recorded.frames(int(events.stack[events.action == Action.ALLOC][-1]))


def test_each_gpu_is_recorded(tmp_path: Path) -> None:
    options = ("--gpus", "2", "--record", tmp_path / "run.plim")
    done = run(TRAINS.with_name("two_gpus.py"), tmp_path, *options)
    assert done.returncode == 0, done.stderr
    counts = [
        int((trace.load().action == Action.ALLOC).sum())
        for trace in read_recording(tmp_path / "run.plim").devices
    ]
    assert counts == [10, 11]


@pytest.mark.long
def test_a_killed_script_leaves_a_file_that_opens(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "plimsoll", "run", "--simulate", "H100"]
    path = tmp_path / "run.plim"
    with subprocess.Popen(
        [*command, "--record", str(path), str(TRAINS), "until_killed"],
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
    assert lines_of_a_step() <= lines_of(recording)
    assert replay(path)[0].num_ooms == 0


def has_steps(path: Path) -> bool:
    try:
        return len(read_recording(path).marks) > 2
    except InputError:
        return False
