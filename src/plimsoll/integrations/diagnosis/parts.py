"""What is found about a machine: plain data."""

from __future__ import annotations

from dataclasses import dataclass

PREDICTING = "predict, fit, run --simulate"
"""The name of the ability that the exit status of `plimsoll doctor` is about."""

NO_GPU = "there is no NVIDIA GPU here"
"""The note of an ability that a machine without a GPU cannot have. It is no fault."""


@dataclass(frozen=True)
class Installed:
    """Something that plimsoll uses.

    Attributes:
        name: What it is, for people.
        version: Which one there is; None if there is none.
        note: What takes it, if that is little; None where its abilities say so.
    """

    name: str
    version: str | None
    note: str | None = None


@dataclass(frozen=True)
class Ability:
    """Something that plimsoll can do where all that it takes is there.

    Attributes:
        name: The verbs, for people, such as "predict, fit".
        works: Whether it works on this machine as it is.
        note: One line: why it does not, or what to know about it; None if there is nothing to say.
        command: The command that makes it work, or work better; None if there is none, or no need.
    """

    name: str
    works: bool
    note: str | None = None
    command: str | None = None
