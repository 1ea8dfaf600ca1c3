"""Folders of trials: what interrupts, and ends, leave behind."""

from __future__ import annotations

import os
import shutil
import signal
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.trials.temporary_folder import interrupts_held, temporary_folder

if TYPE_CHECKING:
    from pathlib import Path


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
