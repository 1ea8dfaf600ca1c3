"""A trial as plimsoll sees it: the command of its holder, and its outcome."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.prediction.trials.holder import ENDED, INTERRUPTED
from plimsoll.prediction.trials.kinds import wanted_kind
from plimsoll.prediction.trials.outcome import Outcome, Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

_SECONDS_TO_END = 10


def held(
    command: Sequence[str], folder: Path, free: Sequence[Path], *, with_network: bool
) -> list[str]:
    """Returns the command of a holder, for a command that must change nothing.

    Args:
        command: The program, with an absolute path.
        folder: A new folder that only this user can enter.
        free: Further folders that the program may change.
        with_network: Whether it may reach other machines.

    Raises:
        InputError: If PLIMSOLL_TRIAL names no kind.
    """
    settings = Settings(str(folder), list(map(str, free)), os.getpid(), with_network, wanted_kind())
    # -P keeps modules of the current folder from shadowing plimsoll's.
    module = "plimsoll.prediction.trials.holder"
    return [sys.executable, "-P", "-m", module, settings.to_json(), *command]


def interrupt(holder: subprocess.Popen[bytes]) -> None:
    """Interrupt the program, unless a terminal has interrupted it already."""
    holder.send_signal(INTERRUPTED)


def end(holder: subprocess.Popen[bytes]) -> None:
    """End a trial with all processes of its program; does nothing if it has ended."""
    holder.send_signal(ENDED)
    try:
        holder.wait(_SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        holder.kill()
        holder.wait()


def outcome_of(folder: Path) -> Outcome | None:
    """Reads the outcome of the trial in a folder; None if its holder was killed."""
    return Outcome.of(folder)
