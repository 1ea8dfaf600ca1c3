"""What the process that runs a script is asked for."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from plimsoll.recipes import title_of
from plimsoll.script_file import is_kept
from plimsoll.torch.simulated.setup import Setup

BAD_INPUT = 2
"""Its exit status when the request cannot be met."""


@dataclass(frozen=True)
class Request:
    """What to run.

    Attributes:
        script: The script's path, or a module's name.
        arguments: Its arguments.
        setup: What it runs on.
        is_module: The script is a module, run as `python -m` does.
        keep_writes: What the script writes stays; if not, it is thrown away after the trial.
        network: The script may reach other machines, also where its writes do not stay.
        report: Where to write what was found, or None.
        account: Where the process says what it used, as PLIMSOLL_REPORT; None for nowhere.
        record: Where to record what happens to GPU memory, or None.
        parent: The process with whose end this one ends, or None.
        at_most_events: The script is stopped after so many events; None for no bound.
        nproc_per_node: The script is a job of so many ranks on each machine; None where it is none,
            or launches them itself.
        nnodes: How many machines the job has.
        ranks: Those of the job that run, the others being taken as equal to them; None for all.
        runs_distinct: Those are one of each role, which has to be found out first.
        groups: Where one rank, alone, writes which process groups it makes; None for nowhere.
        survey: Where to write what the program is made of that could be changed; None for nowhere.
        room: What the program is to take at most, for the survey; None for no such bound.
        finds_least: The least memory is found in which the requests could be served, instead of
            verdicts on other cards.
        files: Texts that files have in this trial instead of their own, by absolute path.
        scratch: The folder of the trial in which the script runs, or None.
    """

    script: str
    arguments: list[str]
    setup: Setup
    is_module: bool = False
    keep_writes: bool = False
    network: bool = False
    report: str | None = None
    account: str | None = None
    record: str | None = None
    parent: int | None = None
    at_most_events: int | None = None
    scratch: str | None = None
    nproc_per_node: int | None = None
    nnodes: int = 1
    ranks: list[int] | None = None
    groups: str | None = None
    runs_distinct: bool = False
    survey: str | None = None
    room: int | None = None
    finds_least: bool = False
    files: dict[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """What it is called: its path or name, or of a recipe its model."""
        script = Path(self.script)
        name = script.name if is_kept(script) else self.script
        return title_of(self.script, self.arguments) or name

    def to_json(self) -> str:
        """For the child process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Request:
        """The inverse of `to_json`."""
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Request:
        """The inverse of `asdict`, also by way of JSON."""
        return cls(**{**values, "setup": Setup.from_dict(values["setup"])})
