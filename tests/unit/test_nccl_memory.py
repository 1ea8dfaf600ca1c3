"""Compares the rule for NCCL's memory with measurements under PyTorch 2.11 (NCCL 2.28.9).

The figures exclude the CUDA context. With two H200s, NCCL took 842 to 862 MiB on a rank that only
makes collectives, 1222 to 1238 MiB on a rank that also receives (send/recv), and 966 to 982 MiB on
a rank that also sends. With one H200 and one rank, NCCL took 556 to 558 MiB for the first
communicator, 806 MiB if the rank also sends to itself, and 388 MiB for each further communicator.
"""

from __future__ import annotations

import pytest

from plimsoll.base.units import MiB
from plimsoll.engine.gpus.profiles import gpu_profile
from plimsoll.torch.simulated.ranks.nccl import Bytes, Communicator, Process, Settings

H200 = gpu_profile("H200")


def mib(size: Bytes) -> tuple[float, float]:
    return size.low / MiB, size.high / MiB


def taken(
    ranks: int, *, to: tuple[int, ...] = (), sender: tuple[int, ...] = (), ring: bool = True
) -> tuple[float, float]:
    """Returns the lowest and highest NCCL memory of rank 0 on one machine."""
    made, process = Communicator(H200, (0,) * ranks, 0), Process(H200)
    size = made.begin() + process.begin()
    if ring:
        size = size + made.connect_ring() + process.launch("ring" if ranks > 1 else "")
    if to or sender:
        size = size + made.connect(to, sender) + process.launch("to 0 from 0")
    return mib(size)


@pytest.mark.parametrize(
    ("found", "measured"),
    [
        (taken(1), (556, 558)),
        (taken(1, to=(0,), sender=(0,)), (806, 806)),
        (taken(2), (842, 862)),
        (taken(2, to=(1,)), (966, 982)),
        (taken(2, sender=(1,)), (1222, 1238)),
    ],
)
def test_what_was_measured_lies_close(
    found: tuple[float, float], measured: tuple[float, float]
) -> None:
    low, high = found
    assert low - 20 <= measured[0] <= measured[1] <= high + 20
    assert high - low <= 20


def test_a_further_communicator_costs_its_tables_alone() -> None:
    assert mib(Communicator(H200, (0,), 0).begin()) == (388, 388)
    assert mib(Communicator(H200, (0,), 0).connect_ring()) == (0, 0)


def test_what_is_connected_costs_once() -> None:
    made = Communicator(H200, (0, 0), 0)
    assert mib(made.connect_ring()) == (288, 288)
    assert mib(made.connect_ring()) == (0, 0)
    assert mib(made.connect([1], [])) == (64, 64)
    assert mib(made.connect([1], [1])) == (320, 320)
    assert mib(made.connect([0, 1], [1])) == (0, 0)


def test_all_to_all_grows_with_the_ranks_that_are_near() -> None:
    made = Communicator(H200, (0,) * 8, 3)
    others = [place for place in range(8) if place != 3]
    assert mib(made.connect(others, others)) == (7 * 384, 7 * 384)


def test_where_nvlink_joins_the_cards_a_ring_is_all_that_collectives_connect() -> None:
    for ranks in (2, 3, 4, 8):
        assert mib(Communicator(H200, (0,) * ranks, 0).connect_ring()) == (288, 288)


def test_more_ranks_than_were_measured_are_extrapolated() -> None:
    assert not Communicator(H200, (0,) * 4, 0).is_extrapolated
    assert Communicator(H200, (0,) * 8, 0).is_extrapolated
    assert Communicator(gpu_profile("A100"), (0, 0), 0).is_extrapolated
    assert Communicator(H200, (0, 1), 0).is_extrapolated


def test_machines_of_a_network_give_a_range() -> None:
    ring = Communicator(H200, (0, 0, 1, 1), 0).connect_ring()
    assert ring.low < ring.high


def test_over_the_network_letters_share_a_pool() -> None:
    made = Communicator(H200, (0, 1, 2), 0)
    one = made.connect([1], [])
    assert one.low > 0
    assert made.connect([2], []) == Bytes()


def test_fewer_channels_take_less() -> None:
    few = Communicator(H200, (0, 0), 0, Settings(most_channels=4))
    assert mib(few.begin()) == (28, 28)
    assert mib(few.connect_ring()) == (48, 48)


def test_settings_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_MAX_NCHANNELS", "2")
    monkeypatch.setenv("NCCL_BUFFSIZE", str(8 * MiB))
    monkeypatch.setenv("NCCL_MIN_NCHANNELS", "many")
    found = Settings.of_environment()
    assert (found.most_channels, found.buffer, found.least_channels) == (2, 8 * MiB, 0)


def test_stacks_grow_to_the_largest_kernel_once() -> None:
    process = Process(H200)
    threads = H200.multiprocessors * H200.max_threads_per_multiprocessor
    assert process.launch("ring").low == (1736 - 1024) * threads
    assert process.launch("letters").low == (1976 - 1736) * threads
    assert process.launch("ring") == Bytes()
    assert process.begin().low > 0
    assert process.begin() == Bytes()


def test_cards_without_a_way_to_each_other_meet_in_the_hosts_memory() -> None:
    made = Communicator(gpu_profile("RTX 4090"), (0, 0), 0)
    assert made.connect_ring() == Bytes()
    assert made.is_extrapolated
