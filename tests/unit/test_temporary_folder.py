"""Tests that temporary folders of trial runs are cleaned up after interrupts and kills."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from plimsoll.prediction.trials.program_processes import MARK
from plimsoll.prediction.trials.temporary_folder import (
    interrupts_held,
    own,
    sweep,
    temporary_folder,
)


def test_an_interrupt_while_it_is_removed_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    remove = shutil.rmtree
    seen: list[Path] = []

    def interrupted(*arguments: Any, **named: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        remove(*arguments, **named)

    monkeypatch.setattr(shutil, "rmtree", interrupted)

    def use() -> None:
        with temporary_folder() as folder:
            (folder / "file").touch()
            seen.append(folder)

    with pytest.raises(KeyboardInterrupt):
        use()
    assert not seen[0].exists()


def test_interrupts_wait_until_the_context_ends() -> None:
    done = []

    def work() -> None:
        with interrupts_held():
            os.kill(os.getpid(), signal.SIGINT)
            done.append(True)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_later_run_sweeps_what_a_dead_owner_left(tmp_path: Path) -> None:
    dead, alive = tmp_path / "plimsoll-dead0000", tmp_path / "plimsoll-alive000"
    other = tmp_path / "plimsoll-others"
    for folder in (dead, alive, other):
        folder.mkdir()
        (folder / "file").touch()
    os.close(own(dead))
    lock = own(alive)
    daemon = subprocess.Popen(["/bin/sleep", "60"], env={MARK: f"{dead}\n/free"})
    while not Path(f"/proc/{daemon.pid}/environ").read_bytes():  # empty until exec is done
        time.sleep(0.01)
    sweep(tmp_path)
    assert daemon.wait(10) == -signal.SIGKILL
    assert sorted(place.name for place in tmp_path.iterdir()) == [alive.name, other.name]
    os.close(lock)


@pytest.mark.parametrize("first_to_end", [0, 1])
def test_a_folder_stays_until_the_last_of_its_owners_ends(
    tmp_path: Path, first_to_end: int
) -> None:
    folder = tmp_path / "plimsoll-owned000"
    folder.mkdir()
    locks = [own(folder), own(folder)]
    os.close(locks.pop(first_to_end))
    sweep(tmp_path)
    assert folder.exists()
    os.close(locks.pop())
    sweep(tmp_path)
    assert not folder.exists()
