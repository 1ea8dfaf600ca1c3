"""The result of a diagnosis of this machine, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

PREDICTING = "predict, fit, run --simulate"
"""The name of the ability that decides the exit status of `plimsoll doctor`."""

NO_GPU = "there is no NVIDIA GPU here"
"""The note on an ability that does not work because this machine has no GPU to use."""


@dataclass(frozen=True)
class Installed:
    """A program or package that plimsoll uses.

    Attributes:
        name: Its name as printed.
        version: The installed version; None if it is missing.
        note: The purpose of a missing package; None if the printed abilities already show it.
    """

    name: str
    version: str | None
    note: str | None = None


@dataclass(frozen=True)
class Ability:
    """Something that plimsoll can do on a machine that meets the requirements.

    Attributes:
        name: The printed description, such as "predict, fit".
        works: Whether it works on this machine now.
        note: Why it does not work, or a remark, in one line; None if there is nothing to say.
        command: The command that makes it work, or work better; None if no command helps or is
            needed.
    """

    name: str
    works: bool
    note: str | None = None
    command: str | None = None
