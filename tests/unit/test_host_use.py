"""Tests reading the memory of processes, and their sum for a machine."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from plimsoll.base.units import GiB, MiB
from plimsoll.base.watchers import Watchers
from plimsoll.prediction.child.resident import common_bytes, resident
from plimsoll.prediction.host_use import HostUse, host_peak


def test_processes_of_a_machine_are_added_up_and_files_are_shared() -> None:
    uses = [
        HostUse(0, GiB, GiB, 200 * MiB, 400 * MiB),
        HostUse(0, 2 * GiB, GiB, 200 * MiB, 100 * MiB),
    ]
    found = host_peak(uses)
    assert found is not None
    peak, (low, high) = found
    assert peak == 3 * GiB + 800 * MiB
    assert low == GiB + 600 * MiB
    assert high == 3 * GiB + 1000 * MiB


def test_the_answer_is_of_the_machine_that_is_filled_most() -> None:
    uses = [HostUse(0, GiB, GiB, 0, 0), HostUse(1, 3 * GiB, GiB, 0, 0), HostUse(0, GiB, GiB, 0, 0)]
    assert host_peak(uses) == (3 * GiB, (GiB, 3 * GiB))
    assert host_peak([]) is None


def test_the_most_in_memory_is_known_also_when_it_is_gone() -> None:
    before = resident()
    if before is None:
        pytest.skip("this system does not say")
    held = bytearray(b"1") * (64 * MiB)
    del held
    after = resident()
    assert after is not None
    assert after.most_own - before.own > 60 * MiB
    assert after.own - before.own < 30 * MiB
    again = resident()
    assert again is not None
    assert again.most_own - again.own < 8 * MiB


def test_a_process_that_is_gone_has_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    assert resident(process.pid) is None
    assert common_bytes(process.pid) is None


def test_what_is_written_to_after_a_fork_is_not_common_any_more() -> None:
    held = bytearray(b"1") * (64 * MiB)
    told, tell = os.pipe()
    if (process := os.fork()) == 0:
        before = common_bytes(os.getpid()) or 0
        held[: 32 * MiB : 4096] = b"2" * (32 * MiB // 4096)
        os.write(tell, str(before - (common_bytes(os.getpid()) or 0)).encode())
        os._exit(0)
    os.waitpid(process, 0)
    copied = int(os.read(told, 64))
    for end in (told, tell):
        os.close(end)
    if common_bytes(os.getpid()) is None:
        pytest.skip("this system does not say")
    assert copied == pytest.approx(32 * MiB, abs=8 * MiB)


class TestLoaderBatches:
    def test_as_many_wait_as_were_ever_under_way_of_the_largest(self) -> None:
        torch = pytest.importorskip("torch")
        from plimsoll.prediction.child.loader_batches import LoaderBatches

        class Loader:
            _tasks_outstanding = 3
            _shutdown = False

            def _process_data(self, data: object, worker: int) -> tuple[object, int]:
                return data, worker

        names = SimpleNamespace(_MultiProcessingDataLoaderIter=Loader)
        module = SimpleNamespace(utils=SimpleNamespace(data=SimpleNamespace(dataloader=names)))
        batches = LoaderBatches(Watchers())
        batches.install(module)  # type: ignore[arg-type]
        loader = Loader()
        assert loader._process_data([torch.zeros(256)], 1)[1] == 1
        loader._tasks_outstanding = 1
        loader._process_data({"x": torch.zeros(512), "y": "text"}, 0)
        assert batches.waiting_bytes == 4 * 512 * 4
        loader._shutdown = True
        assert batches.waiting_bytes == 0
