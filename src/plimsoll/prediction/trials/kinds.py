"""The means that keep a trial apart, the strongest first."""

from __future__ import annotations

import os
from enum import StrEnum

from plimsoll.base.errors import InputError

_VARIABLE = "PLIMSOLL_TRIAL"


class Kind(StrEnum):
    """How a trial is kept apart."""

    OVERLAY = "overlay"
    """The kernel shows the program a copy of every folder."""
    WALL = "wall"
    """A library before libc redirects writes, and the kernel refuses those that bypass it."""
    LAYER = "layer"
    """The library alone: writes that bypass it reach real files."""


def wanted_kind() -> Kind | None:
    """Returns the kind that PLIMSOLL_TRIAL names; None for the strongest that the machine offers.

    Raises:
        InputError: If it names none.
    """
    name = os.environ.get(_VARIABLE, "")
    if not name:
        return None
    try:
        return Kind(name)
    except ValueError:
        kinds = ", ".join(Kind)
        raise InputError(f"{_VARIABLE}={name}: it is one of {kinds}") from None
