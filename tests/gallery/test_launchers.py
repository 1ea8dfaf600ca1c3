"""Tests jobs whose ranks are started by a library's own launcher or trainer."""

from __future__ import annotations

import importlib.util

import pytest

from tests.simulated import PROGRAMS, simulate

pytestmark = pytest.mark.gallery

JOBS = PROGRAMS / "jobs"
TORCHRUN = ("torchrun", "--nproc-per-node", "2")
ACCELERATE = ("accelerate", "launch", "--multi_gpu", "--num_processes", "2")
DEEPSPEED = ("deepspeed", "--num_gpus", "2")


def need(library: str) -> None:
    """Skips a test if a library is not installed.

    Imports nothing, because some libraries need a CUDA build of PyTorch.
    """
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")


@pytest.mark.parametrize(
    ("library", "launcher", "script"),
    [
        ("accelerate", ACCELERATE, "rank.py"),
        ("accelerate", ACCELERATE, "with_trainer.py"),
        ("accelerate", TORCHRUN, "with_trainer.py"),
        ("deepspeed", DEEPSPEED, "rank.py"),
        ("lightning", (), "with_lightning.py"),
        ("lightning", TORCHRUN, "with_lightning.py"),
    ],
)
def test_two_ranks_have_a_simulated_card_each(
    library: str, launcher: tuple[str, ...], script: str
) -> None:
    need(library)
    done = simulate(JOBS / script, "--gpus", "2", *launcher, environment={})
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    for rank in (0, 1):
        assert f"rank {rank} of 2 on cuda:{rank}" in said


@pytest.mark.parametrize(
    ("library", "launcher", "status"), [("accelerate", ACCELERATE, 1), ("deepspeed", DEEPSPEED, 1)]
)
def test_a_rank_that_fails_ends_the_job_with_its_traceback(
    library: str, launcher: tuple[str, ...], status: int
) -> None:
    need(library)
    done = simulate(JOBS / "rank.py", "--gpus", "2", *launcher, arguments=["fails"], environment={})
    said = done.stdout + done.stderr
    assert done.returncode == status, said
    assert "ValueError: this rank gives up" in said
