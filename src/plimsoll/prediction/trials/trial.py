"""Starts and ends the holder process of a trial, and reads the trial's outcome."""

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
    """Returns the command line of a holder process, which runs `command` as a trial.

    Args:
        command: The program, by its absolute path, and its arguments.
        folder: A new folder that only this user can enter.
        free: Further folders that the program may change.
        with_network: Whether the program may reach other machines.

    Raises:
        InputError: If PLIMSOLL_TRIAL names no kind.
    """
    settings = Settings(str(folder), list(map(str, free)), os.getpid(), with_network, wanted_kind())
    # -P: a file in the current folder must not be imported in place of one of Python's modules.
    module = "plimsoll.prediction.trials.holder"
    return [sys.executable, "-P", "-m", module, settings.to_json(), *command]


def interrupt(holder: subprocess.Popen[bytes]) -> None:
    """Interrupts the program, unless it already got Ctrl-C from the terminal."""
    holder.send_signal(INTERRUPTED)


def end(holder: subprocess.Popen[bytes]) -> None:
    """Ends a trial and all processes of its program; does nothing if it has ended."""
    holder.send_signal(ENDED)
    try:
        holder.wait(_SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        holder.kill()
        holder.wait()


def outcome_of(folder: Path) -> Outcome | None:
    """Reads the outcome of the trial in a folder; None if its holder was killed."""
    return Outcome.of(folder)
