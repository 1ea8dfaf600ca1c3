"""The result of `doctor`, which prints as text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from plimsoll.integrations.diagnosis.parts import PREDICTING
from plimsoll.integrations.diagnosis.text import diagnosis_text

if TYPE_CHECKING:
    from plimsoll.integrations.diagnosis.parts import Ability, Installed


@dataclass(frozen=True)
class Diagnosis:
    """Says what is installed on this machine, and which abilities of plimsoll work here.

    Its text is what `plimsoll doctor` prints.

    >>> import plimsoll
    >>> diagnosis = plimsoll.doctor()
    >>> [one.name for one in diagnosis.abilities if not one.works]  # doctest: +SKIP

    Attributes:
        installed: The programs and packages that plimsoll uses, installed or not.
        abilities: The abilities of plimsoll; each says whether it works here.
    """

    installed: list[Installed]
    abilities: list[Ability]

    @property
    def is_complete(self) -> bool:
        """Whether all abilities work, except those for which no command helps."""
        return all(one.works or one.command is None for one in self.abilities)

    @property
    def predicts(self) -> bool:
        """Whether `predict` works here."""
        return all(one.works for one in self.abilities if one.name == PREDICTING)

    def to_dict(self) -> dict[str, Any]:
        """Returns the values that `plimsoll doctor --json` prints."""
        return {"is_complete": self.is_complete, "predicts": self.predicts, **asdict(self)}

    def __str__(self) -> str:
        return diagnosis_text(self.installed, self.abilities)
