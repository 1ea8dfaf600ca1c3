"""Tests that Python processes started by a program on simulated GPUs have these GPUs too."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from plimsoll.recordings.reading import read_recording
from tests.simulated import PROGRAMS, simulate

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytest.importorskip("torch")

RANK = PROGRAMS / "jobs" / "rank.py"
STARTS = PROGRAMS / "jobs" / "starts.py"
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
KINDS = [
    "subprocess",
    "os.fork",
    "forkserver",
    *(pytest.param(kind, marks=pytest.mark.long) for kind in ("shell", "fork", "spawn")),
]
SEEN = "NVIDIA A100-SXM4-80GB cuda:0"


def launch(
    *command: object, arguments: Sequence[str] = (), folder: Path | None = None
) -> tuple[int, str]:
    """Runs `plimsoll run --simulate ... COMMAND rank.py`. Returns its exit status and output."""
    options = ("--gpus", "2", *map(str, command))
    done = simulate(RANK, *options, arguments=arguments, folder=folder, environment={})
    return done.returncode, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_process_has_gpus_however_it_is_started(kind: str) -> None:
    done = simulate(STARTS, arguments=[kind], environment={})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [SEEN]


def test_a_plain_process_imports_nothing_and_runs_the_next_sitecustomize(tmp_path: Path) -> None:
    alone = simulate(STARTS, arguments=["plain"], environment={"PYTHONPATH": ""})
    assert alone.stdout.splitlines()[0] == "[]"
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.noted = 'noted'\n")
    chained = simulate(STARTS, arguments=["plain"], environment={"PYTHONPATH": str(tmp_path)})
    assert chained.stdout.splitlines() == ["[]", "noted True"]


@pytest.mark.long
def test_torchruns_ranks_run_a_script_unmodified() -> None:
    status, said = launch(*TORCHRUN)
    assert status == 0, said
    for rank in (0, 1):
        assert f"rank {rank} of 2 on cuda:{rank} with []" in said


@pytest.mark.long
def test_a_launcher_is_found_by_its_name_and_each_rank_says_what_it_used() -> None:
    status, said = launch("torchrun", "--nproc-per-node", "2")
    assert status == 0, said
    for rank in (0, 1):
        assert f"rank {rank} of 2 on cuda:{rank}" in said
        assert f"plimsoll: rank {rank}, GPU {rank}, the native allocator: peak allocated" in said


@pytest.mark.long
def test_a_job_that_fails_ends_with_its_launchers_status() -> None:
    status, said = launch(*TORCHRUN, arguments=["fails"])
    assert status == 1
    assert "ValueError: this rank gives up" in said


@pytest.mark.long
def test_ranks_that_multiprocessing_spawns_talk_and_say_what_they_used() -> None:
    done = simulate(PROGRAMS / "jobs" / "spawned.py", "--gpus", "2", environment={})
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        assert f"rank {rank} of 2 on cuda:{rank} has 3" in done.stdout
        assert f"rank {rank}, GPU {rank}, the native allocator" in done.stderr


@pytest.mark.long
def test_recordings_say_inside_which_rank_they_are_of(tmp_path: Path) -> None:
    status, said = launch("--record", "run.plim", *TORCHRUN, folder=tmp_path)
    assert status == 0, said
    # The launcher itself used no GPU, so it has no recording.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.rank0.plim", "run.rank1.plim"]
    for rank in (0, 1):
        shutil.move(tmp_path / f"run.rank{rank}.plim", tmp_path / f"renamed{rank}.plim")
        place = read_recording(tmp_path / f"renamed{rank}.plim").process
        assert place is not None
        assert (place.rank, place.local_rank, place.world_size) == (rank, rank, 2)
        assert place.host == os.uname().nodename


JOINS = """
import torch, torch.distributed as dist
torch.ones(3, device="cuda")
dist.init_process_group("nccl", rank=0, world_size=1, store=dist.HashStore())
torch.ones(3, device="cuda")
"""


@pytest.mark.long
def test_a_recording_says_which_rank_the_process_became_later(tmp_path: Path) -> None:
    done = simulate(JOINS, "--record", "run.plim", folder=tmp_path, environment={})
    assert done.returncode == 0, done.stderr
    place = read_recording(tmp_path / "run.plim").process
    assert place is not None
    assert (place.rank, place.local_rank, place.world_size) == (0, None, 1)
