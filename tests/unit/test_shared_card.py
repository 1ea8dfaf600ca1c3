"""Tests a simulated card that several processes use; a mapped file holds what each one uses."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from plimsoll import SimulatedGpu, _core
from plimsoll.base.errors import OutOfMemoryError
from plimsoll.base.units import GiB
from plimsoll.prediction.child.cards import read_cards

WHOLE = 80 * GiB


def shared_gpu(path: Path) -> SimulatedGpu:
    gpu = SimulatedGpu(WHOLE)
    gpu.share(str(path))
    return gpu


class Other:
    """Another process, which takes memory of the card and waits to be killed."""

    def __init__(self, path: Path, size: int, then: int = 0) -> None:
        """Starts the process. It takes `size` bytes. If `then` is not 0, it keeps only `then`."""
        read, write = os.pipe()
        self.process = os.fork()
        if not self.process:
            gpu = shared_gpu(path)
            handle = gpu.take(size - then)
            if then:
                gpu.take(then)
                gpu.give_back(handle)
            os.write(write, b"taken")
            signal.pause()
        os.read(read, 5)

    def kill(self) -> None:
        os.kill(self.process, signal.SIGKILL)
        # Waits until the process has ended, but leaves it as a zombie.
        os.waitid(os.P_PID, self.process, os.WEXITED | os.WNOWAIT)

    def forget(self) -> None:
        os.waitpid(self.process, 0)


def test_what_another_process_has_is_not_free_until_it_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "card"
    gpu = shared_gpu(path)
    gpu.take(GiB)
    other = Other(path, 70 * GiB)
    assert gpu.free_bytes == 9 * GiB
    assert gpu.dedicated_used_bytes == GiB
    with pytest.raises(OutOfMemoryError):
        gpu.take(10 * GiB)
    other.kill()
    assert gpu.free_bytes == 79 * GiB
    gpu.take(20 * GiB)
    card = _core.SharedCard(str(path))
    assert card.users == [(os.getpid(), 21 * GiB), (other.process, 70 * GiB)]
    assert card.together == 71 * GiB
    assert card.at_most == 71 * GiB  # the peaks of the two processes were not at the same time
    assert card.is_complete
    other.forget()


def test_peaks_of_processes_that_live_at_the_same_time_may_come_together(tmp_path: Path) -> None:
    path = tmp_path / "card"
    gpu = shared_gpu(path)
    gpu.take(GiB)
    other = Other(path, 50 * GiB, then=GiB)
    handle = gpu.take(60 * GiB)
    gpu.give_back(handle)
    card = _core.SharedCard(str(path))
    assert card.together == 62 * GiB
    assert card.at_most == 111 * GiB
    other.kill()
    other.forget()


def test_a_forked_process_does_not_give_back_what_its_parent_has(tmp_path: Path) -> None:
    gpu = shared_gpu(tmp_path / "card")
    handle = gpu.take(10 * GiB)
    process = os.fork()
    if not process:
        gpu.give_back(handle)
        os._exit(0)
    os.waitpid(process, 0)
    assert shared_gpu(tmp_path / "card").free_bytes == 70 * GiB


@pytest.mark.long
def test_more_processes_than_there_are_places_for_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "card"
    places = 1024
    for _ in range(places + 1):
        process = os.fork()
        if not process:
            shared_gpu(path).take(GiB)
            os._exit(0)
        os.waitpid(process, 0)
    card = _core.SharedCard(str(path))
    assert len(card.users) == places
    assert not card.is_complete


def test_a_file_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing"):
        SimulatedGpu(WHOLE).share(str(tmp_path / "missing" / "card"))


def test_a_process_that_only_asks_about_a_card_is_no_user_of_it(tmp_path: Path) -> None:
    """A process that asks about a card, or page-locks host memory, does not use the card yet."""
    path = tmp_path / "0-0-.card"
    gpu = shared_gpu(path)
    gpu.pin_memory("1MiB")
    (card,) = read_cards(str(tmp_path)).values()
    assert card.takes == {}
    gpu.take("2MiB")
    (card,) = read_cards(str(tmp_path)).values()
    assert card.takes == {os.getpid(): 2 << 20}
