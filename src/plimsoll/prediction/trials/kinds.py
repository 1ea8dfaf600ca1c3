"""The ways in which a trial protects real files from a program's writes, the strongest first."""

from __future__ import annotations

import os
from enum import StrEnum

from plimsoll.base.errors import InputError

_VARIABLE = "PLIMSOLL_TRIAL"


class Kind(StrEnum):
    """How a trial protects real files from a program's writes."""

    OVERLAY = "overlay"
    """Overlay file systems show real folders to the program, but store its writes elsewhere."""
    WALL = "wall"
    """A preloaded library redirects writes. The kernel refuses writes that bypass the library."""
    LAYER = "layer"
    """The library redirects writes as with `WALL`, but the kernel refuses none: writes that bypass
    the library reach real files."""


def wanted_kind() -> Kind | None:
    """Returns the kind that PLIMSOLL_TRIAL names.

    Returns None if the variable is unset. A trial is then of the strongest kind that the machine
    offers.

    Raises:
        InputError: If the variable does not name a kind.
    """
    name = os.environ.get(_VARIABLE, "")
    if not name:
        return None
    try:
        return Kind(name)
    except ValueError:
        kinds = ", ".join(Kind)
        raise InputError(f"{_VARIABLE}={name}: must be one of {kinds}") from None
