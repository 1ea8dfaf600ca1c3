"""Tests that a Ray cluster of two nodes computes what one host computes, even if workers die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from plimsoll.base.workers.everywhere import run_all, where
from tests.integrations.needed import needs
from tests.ray_cluster import ray_cluster
from tests.unit.test_workers import squared
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
RECORDING = ROOT / "tests" / "data" / "churn.default.pickle.gz"
pytestmark = needs("ray")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Yields the address of a cluster whose workers can import functions of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        with ray_cluster() as found:
            yield found


def sweep(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    confs = ";".join(f"max_split_size_mb:{20 + n}" for n in range(200))
    return subprocess.Popen(
        [
            sys.executable, "-m", "plimsoll", "sweep", str(RECORDING), f"--vary=conf={confs}",
            "--json", *arguments,
        ],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def workers() -> list[int]:
    """Returns the processes of this test's cluster that are working on a case."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # the process has ended
            if path.read_bytes().startswith(b"ray::answer") and is_mine(int(path.parent.name)):
                found.append(int(path.parent.name))
    return found


def is_mine(process: int) -> bool:
    """Returns whether the current process is `process` or one of its ancestors."""
    while process > 1:
        if process == os.getpid():
            return True
        process = int(Path("/proc", str(process), "stat").read_text().rpartition(")")[2].split()[1])
    return False


def kill_a_worker() -> None:
    os.kill(wait_for(workers)[0], signal.SIGKILL)


def test_everything_is_done_on_a_cluster(address: str) -> None:
    assert where(address=address) == f"running on the Ray cluster at {address}"
    found = {done.index: done for done in run_all(squared, [3, -1, 5], address=address)}
    assert [found[number].result for number in range(3)] == [9, None, 25]
    assert found[1].error == "ValueError: -1 is negative"


def test_a_sweep_survives_its_driver_and_a_worker(address: str, tmp_path: Path) -> None:
    driver = sweep(tmp_path, f"--address={address}")
    wait_for((tmp_path / "sweep.parquet").exists)
    driver.kill()
    driver.communicate()
    again = sweep(tmp_path, f"--address={address}")
    killer = threading.Thread(target=kill_a_worker)
    killer.start()
    output, errors = again.communicate(timeout=300)
    killer.join()
    assert again.returncode in (0, 1), errors
    found = json.loads(output)
    assert 0 < found["reused"] < 200
    assert [row["error"] for row in found["rows"]] == [None] * 200
    (tmp_path / "alone").mkdir()
    alone, errors = sweep(tmp_path / "alone", "--processes=2").communicate(timeout=300)
    peaks = [row["peak_reserved_bytes"] for row in json.loads(alone)["rows"]]
    assert [row["peak_reserved_bytes"] for row in found["rows"]] == peaks
