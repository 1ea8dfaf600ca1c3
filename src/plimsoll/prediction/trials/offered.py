"""Finds the kinds of trials that this machine offers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.base.errors import InputError
from plimsoll.prediction.trials import scratch_layer
from plimsoll.prediction.trials.kinds import Kind
from plimsoll.prediction.trials.overlay import check_possible
from plimsoll.prediction.trials.temporary_folder import temporary_folder
from plimsoll.prediction.trials.wall import Wall

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def offered() -> list[Kind]:
    """Returns the kinds of trials that this machine offers, the strongest first."""
    return [kind for kind in Kind if why_not(kind) is None]


def why_not(kind: Kind) -> str | None:
    """Returns why this machine does not offer a kind of trial; None if it does."""
    with temporary_folder() as folder:
        try:
            _CHECKS[kind](folder)
        except (OSError, InputError) as error:
            return str(error)
    return None


def _check_layer(folder: Path) -> None:
    scratch_layer.check_folder(folder)
    scratch_layer.library(folder)


def _check_wall(folder: Path) -> None:
    _check_layer(folder)
    Wall(scratch_layer.library(folder), [], 1).check_possible()


_CHECKS: dict[Kind, Callable[[Path], None]] = {
    Kind.OVERLAY: check_possible,
    Kind.WALL: _check_wall,
    Kind.LAYER: _check_layer,
}
