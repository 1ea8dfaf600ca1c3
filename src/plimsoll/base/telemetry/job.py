"""This process's place in its job: what PyTorch knows of it, or what its launcher said."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress

from plimsoll.base.process_place import LONGEST_NAME, ProcessPlace

# What says rank, rank on its host, and number of ranks, by launcher. torchrun's come first: where a
# scheduler starts a torchrun on each host, only torchrun knows the ranks.
_LAUNCHERS = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),  # MPICH's and Intel's
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"),
)
# What names the job, best first: the user's own name, the scheduler's number, torchrun's.
_JOBS = ("PLIMSOLL_JOB", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "TORCHELASTIC_RUN_ID")
_NO_JOB = "none"  # torchrun's, unless it is told one


def place_of_process() -> ProcessPlace:
    """As far as it is known now: a program may join its job later."""
    given = next((each for each in _LAUNCHERS if _is_launched(*each)), _LAUNCHERS[0])
    rank, local_rank, world_size = map(launched_as, given)
    rank, world_size = _joined() or (rank, world_size)
    return ProcessPlace(rank, local_rank, world_size, socket.gethostname(), job_of_process())


def rank_of_process() -> int | None:
    """Its rank, as far as it is known now."""
    return place_of_process().rank


def job_of_process() -> str | None:
    """The name of the job that this process is of, if it is of one: printable, and not too long."""
    named = (os.environ.get(name, "")[:LONGEST_NAME] for name in _JOBS)
    return next((job for job in named if job not in ("", _NO_JOB) and job.isprintable()), None)


def launched_as(name: str) -> int | None:
    """A number that the launcher gave this process, such as RANK."""
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else None


def _is_launched(rank: str, local_rank: str, size: str) -> bool:
    """Whether a launcher gave this process a rank; a scheduler's job of one process has none."""
    is_alone = (rank, local_rank, size) != _LAUNCHERS[0] and launched_as(size) == 1
    return launched_as(rank) is not None and not is_alone


def _joined() -> tuple[int, int] | None:
    distributed = sys.modules.get("torch.distributed")
    with suppress(AttributeError, RuntimeError, ValueError):  # while it is imported, or ends
        if distributed is not None and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
    return None
