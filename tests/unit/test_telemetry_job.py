"""Tests that each launcher's environment variables tell plimsoll a process's place in its job."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from plimsoll.base.process_place import ProcessPlace
from plimsoll.base.telemetry.exit_summaries import make_summary
from plimsoll.base.telemetry.job import place_of_process
from plimsoll.torch.session.record import own_path

LAUNCHED = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "PLIMSOLL_JOB", "PBS_JOBID"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    *("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),
    *("SLURM_JOB_ID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "LSB_JOBID"),
)
HOST = socket.gethostname()
TORCHRUN = {"RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "16", "TORCHELASTIC_RUN_ID": "none"}
SLURM = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "3", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4"}
MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "8",
}


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("environment", "rank", "local_rank", "world_size", "job"),
    [
        ({}, None, None, None, None),
        (TORCHRUN, 9, 1, 16, None),
        ({**TORCHRUN, "TORCHELASTIC_RUN_ID": "llama"}, 9, 1, 16, "llama"),
        (SLURM, 3, 0, 4, "77"),
        (MPI, 5, 2, 8, None),
        ({**SLURM, **TORCHRUN}, 9, 1, 16, "77"),  # srun starts a torchrun on each host
        ({"PMI_RANK": "6", "MPI_LOCALRANKID": "2", "PMI_SIZE": "8", **SLURM}, 6, 2, 8, "77"),
        ({**SLURM, "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, None, None, None, "77"),
        ({**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"}, 0, 1, 1, None),
        ({**SLURM, "PLIMSOLL_JOB": "mine"}, 3, 0, 4, "mine"),
        ({"RANK": "-1", "PLIMSOLL_JOB": "a\x1b[2Jb"}, None, None, None, None),
        ({"RANK": "2"}, 2, None, None, None),
    ],
)
def test_each_launcher_is_understood(
    environment: dict[str, str],
    rank: int | None,
    local_rank: int | None,
    world_size: int | None,
    job: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert place_of_process() == ProcessPlace(rank, local_rank, world_size, HOST, job)


@pytest.mark.parametrize("name", ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"])
def test_recordings_and_summaries_are_of_the_rank_that_a_launcher_gave(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "3")
    assert own_path(Path("run.plim")) == Path("run.rank3.plim")
    figures = {"peak_allocated_bytes": 1, "peak_reserved_bytes": 2}
    assert make_summary("native", 0, figures).rank == 3


def test_what_a_rank_starts_has_a_recording_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLIMSOLL_RECORD_OF_PARENT", "run.rank3.plim")
    assert own_path(Path("run.plim")) == Path(f"run.{os.getpid()}.plim")
    monkeypatch.setenv("SLURM_PROCID", "3")
    assert own_path(Path("run.plim")) == Path(f"run.rank3.{os.getpid()}.plim")
    # Rank 3 of the Slurm job has started a second job, in which this process is rank 0.
    monkeypatch.setenv("RANK", "0")
    assert own_path(Path("run.plim")) == Path("run.rank0.plim")


def test_a_long_name_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLIMSOLL_JOB", "x" * 1000)
    place = place_of_process()
    assert place.job == "x" * 255
    assert ProcessPlace.from_dict(json.loads(json.dumps(asdict(place)))) == place


def test_recordings_of_before_have_no_job() -> None:
    before = {"rank": 1, "local_rank": 1, "world_size": 2, "host": "a"}
    assert ProcessPlace.from_dict(before) == ProcessPlace(1, 1, 2, "a", None)


@pytest.mark.parametrize("job", [7, "a\nb", "x" * 256, ["a"]], ids=str)
def test_an_impossible_job_is_refused(job: Any) -> None:
    with pytest.raises(ValueError, match="a process's job has an impossible name"):
        ProcessPlace.from_dict({"job": job})
