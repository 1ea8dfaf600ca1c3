"""What of the means of trials a machine offers."""

from __future__ import annotations

from pathlib import Path

from plimsoll.errors import InputError
from plimsoll.trials import scratch_layer
from plimsoll.trials.kinds import Kind
from plimsoll.trials.overlay import check_possible
from plimsoll.trials.temporary_folder import temporary_folder
from plimsoll.trials.wall import Wall


def offered() -> tuple[Kind, dict[Kind, str]]:
    """The strongest kind of trial that this machine offers, and why it offers no stronger one."""
    why_not: dict[Kind, str] = {}
    with temporary_folder() as folder:
        try:
            check_possible(folder)
        except OSError as error:
            why_not[Kind.OVERLAY] = str(error)
        else:
            return Kind.OVERLAY, why_not
        try:
            _check_wall(folder)
        except (OSError, InputError) as error:
            why_not[Kind.WALL] = str(error)
        else:
            return Kind.WALL, why_not
    return Kind.LAYER, why_not


def _check_wall(folder: Path) -> None:
    scratch_layer.check_folder(folder)
    Wall(scratch_layer.library(folder), [], 0).check_possible()
