"""Finds this process's rank and job, as PyTorch or the launcher reports them."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress

from plimsoll.base.process_place import LONGEST_NAME, ProcessPlace

# Each launcher's environment variables for the rank, the local rank and the number of ranks.
# torchrun's come first: if a scheduler starts one torchrun on each host, only torchrun knows the
# ranks.
_LAUNCHERS = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),  # MPICH and Intel MPI
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"),
)
# The environment variables that name the job, best first: a name that the user chose, then the job
# id of a scheduler, then the run id of torchrun.
_JOBS = ("PLIMSOLL_JOB", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "TORCHELASTIC_RUN_ID")
_NO_JOB = "none"  # torchrun's default run id


def place_of_process() -> ProcessPlace:
    """Returns this process's host, rank and job.

    A later call may return another rank: a process may join a process group while it runs.
    """
    given = next((each for each in _LAUNCHERS if _is_launched(*each)), _LAUNCHERS[0])
    rank, local_rank, world_size = map(launched_as, given)
    rank, world_size = _joined() or (rank, world_size)
    return ProcessPlace(rank, local_rank, world_size, socket.gethostname(), job_of_process())


def rank_of_process() -> int | None:
    """Returns this process's rank in its job; None if the rank is not known."""
    return place_of_process().rank


def job_of_process() -> str | None:
    """Returns the name of this process's job, cut to a valid length; None if it has none."""
    named = (os.environ.get(name, "")[:LONGEST_NAME] for name in _JOBS)
    return next((job for job in named if job not in ("", _NO_JOB) and job.isprintable()), None)


def launched_as(name: str) -> int | None:
    """Returns the number in an environment variable of the launcher, such as RANK."""
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else None


def _is_launched(rank: str, local_rank: str, size: str) -> bool:
    """Returns whether these environment variables hold the rank of a process in a job.

    Schedulers also set their variables for a single process. Such a process has no job.
    """
    is_alone = (rank, local_rank, size) != _LAUNCHERS[0] and launched_as(size) == 1
    return launched_as(rank) is not None and not is_alone


def _joined() -> tuple[int, int] | None:
    distributed = sys.modules.get("torch.distributed")
    # The calls below may raise these errors while PyTorch is being imported, or while its process
    # group is being destroyed.
    with suppress(AttributeError, RuntimeError, ValueError):
        if distributed is not None and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
    return None
