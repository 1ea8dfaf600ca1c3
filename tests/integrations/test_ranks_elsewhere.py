"""Tests reading many ranks' recordings from an object store, and with a Ray cluster."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyarrow import fs

from plimsoll import explain_ranks, view_ranks
from tests.integrations.needed import needs
from tests.made_ranks import Rank, history_of, program_of, write_rank
from tests.ray_cluster import ray_cluster
from tests.recordings import EXAMPLES

if TYPE_CHECKING:
    from collections.abc import Iterator

RANKS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes a folder with the recordings of twelve ranks; rank 7 leaks memory."""
    made = tmp_path_factory.mktemp("job")
    program = program_of(EXAMPLES / "gpt2_adamw.pickle.gz")
    for rank in range(RANKS):
        history = history_of(program, Rank(10_000, fault="leak" if rank == 7 else None, seed=5))
        write_rank(made / f"rank{rank}.plim", history, rank=rank, world_size=RANKS, seed=rank)
    return made


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Serves the S3 protocol on this machine. Yields the query string for `s3://` addresses."""
    server = import_module("moto.server").ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    host, port = server.get_host_and_port()
    where = f"scheme=http&endpoint_override={host}:{port}&region=us-east-1"
    yield f"?{where}&allow_bucket_creation=true"
    server.stop()


@needs("moto")
def test_a_folder_in_an_object_store_is_as_one_here(
    store: str, folder: Path, tmp_path: Path
) -> None:
    bucket, _ = fs.FileSystem.from_uri(f"s3://runs/{store}")
    bucket.create_dir("runs/job", recursive=True)
    fs.copy_files(
        str(folder), "runs/job", source_filesystem=fs.LocalFileSystem(),
        destination_filesystem=bucket,
    )  # fmt: skip
    address = f"s3://runs/job{store}"
    found = explain_ranks(address, advice=False)
    here = explain_ranks(folder, advice=False)
    assert found.groups == here.groups
    assert found.outliers == here.outliers
    assert found.ranks[7].file == "s3://runs/job/rank7.plim"
    result = view_ranks(address, output=tmp_path / "job.html")
    assert len(result.rank_pages) == RANKS


@needs("ray")
def test_a_cluster_gives_the_same_answer_also_where_a_worker_is_killed(folder: Path) -> None:
    here = explain_ranks(folder, advice=False)
    with ray_cluster(2) as address:
        assert explain_ranks(folder, advice=False, address=address) == here
        killed: list[int] = []
        killer = threading.Thread(target=_kill_a_worker, args=(killed,))
        killer.start()
        assert explain_ranks(folder, advice=False, address=address) == here
        killer.join()
    assert killed


def _kill_a_worker(killed: list[int]) -> None:
    """Kills the first process that works on a recording."""
    end = time.monotonic() + 60
    while not killed and time.monotonic() < end:
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if b"ray::answer" in (process / "cmdline").read_bytes():
                    os.kill(int(process.name), signal.SIGKILL)
                    killed.append(int(process.name))
                    return
        time.sleep(0.005)
