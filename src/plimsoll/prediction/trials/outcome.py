"""The settings of a trial's holder, and the outcome that it writes at the end."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from plimsoll.base.files import NewFile
from plimsoll.prediction.trials.kept_apart import KeptApart
from plimsoll.prediction.trials.kinds import Kind
from plimsoll.prediction.trials.written import Written

_NAME = "outcome.json"


@dataclass(frozen=True)
class Settings:
    """The settings of a trial.

    Attributes:
        folder: The trial's folder, which only this user can enter.
        free: Further folders that the program may write to.
        parent: The id of the process that requested the trial.
        with_network: Whether the program may reach other machines.
        kind: The kind of isolation; None for the strongest kind that the machine offers.
    """

    folder: str
    free: list[str]
    parent: int
    with_network: bool
    kind: Kind | None

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Returns the settings from the text of `to_json`."""
        found = json.loads(text)
        return cls(**found | {"kind": found["kind"] and Kind(found["kind"])})

    def to_json(self) -> str:
        """Returns the settings as text."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Outcome:
    """The result of a trial.

    Attributes:
        kept_apart: How real files were protected from the program's writes; None if no protection
            could be set up, so that the program never began.
        status: The program's exit status; negative for a signal.
        written: The files that the program wrote, the largest first.
        failure: Why the program never began; empty if it did.
    """

    kept_apart: KeptApart | None
    status: int = 1
    written: list[Written] = field(default_factory=list)
    failure: str = ""

    def keep(self, folder: Path) -> None:
        """Writes the outcome to the trial's folder."""
        with NewFile(folder / _NAME) as file:
            file.write(json.dumps(asdict(self)).encode())

    @classmethod
    def of(cls, folder: Path) -> Outcome | None:
        """Reads the outcome from a folder; None if the holder was killed before it wrote one."""
        try:
            found = json.loads((folder / _NAME).read_text())
        except FileNotFoundError:
            return None
        kept_apart = found["kept_apart"] and KeptApart.from_dict(found["kept_apart"])
        written = [Written(**one) for one in found["written"]]
        return cls(kept_apart, found["status"], written, found["failure"])
