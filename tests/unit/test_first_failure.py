"""Tests that a job reports the error of the rank that failed first, even if another exits first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from plimsoll.prediction.child.first_failure import first_failure
from plimsoll.prediction.child.ranks import run_ranks
from plimsoll.prediction.request import Request
from plimsoll.torch.simulated.setup import Setup

if TYPE_CHECKING:
    from pathlib import Path

# A thread reads the output of each rank through a pipe. The pipe may be closed after the test.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

_RANK = """
import atexit, os, signal, sys, time
from pathlib import Path
from plimsoll.prediction.child.first_failure import note_failure
from plimsoll.base.watchers import Watchers

folder = Path(sys.argv[1]) / "processes"
note_failure(str(folder), Watchers())
gone = folder / "gone"
if os.environ["RANK"] == "0":
    {first}
while not gone.exists():
    time.sleep(0.01)
raise ConnectionError("the connection was closed")
"""
_RAISES = """
    def leave():
        gone.touch()
        time.sleep(1)
    atexit.register(leave)
    raise ValueError("the batch is odd")
"""
_IS_KILLED = """
    gone.touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def request_of(folder: Path, first: str) -> Request:
    (folder / "processes").mkdir()
    script = folder / "rank.py"
    script.write_text(_RANK.format(first=first.strip()))
    return Request(
        str(script), [str(folder)], Setup(gpus=("H100",) * 2),
        report=str(folder / "report.json"), nproc_per_node=2,
    )  # fmt: skip


def test_the_rank_that_raised_first_failed_first_though_it_is_gone_later(tmp_path: Path) -> None:
    rank, ended_by = run_ranks(request_of(tmp_path, _RAISES))
    assert rank == 0
    assert isinstance(ended_by, SystemExit)
    assert ended_by.code == 1
    failure = first_failure(tmp_path / "processes")
    assert failure is not None
    assert failure.rank == 0
    assert failure.reason is not None
    assert failure.reason.startswith("ValueError: the batch is odd (")
    assert "rank.py:" in failure.reason


def test_a_rank_that_was_killed_failed_by_itself(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rank, _ = run_ranks(request_of(tmp_path, _IS_KILLED))
    assert rank == 0
    assert "[rank 0] was killed by SIGKILL" in capfd.readouterr().err


def test_of_one_rank_its_own_failure_is_said(tmp_path: Path) -> None:
    run_ranks(request_of(tmp_path, _RAISES))
    assert first_failure(tmp_path / "processes", {2}) is None
    assert first_failure(tmp_path) is None
