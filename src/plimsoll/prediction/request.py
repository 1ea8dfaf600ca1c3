"""The request that plimsoll sends to the process that runs a script."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from plimsoll.base.script_file import is_kept
from plimsoll.prediction.recipes.recipe import title_of
from plimsoll.torch.simulated.setup import Setup

BAD_INPUT = 2
"""The exit status of a process that cannot meet its request."""


@dataclass(frozen=True)
class Request:
    """A script to run, and the reports to make.

    Attributes:
        script: The script's path, or a module's name.
        arguments: The script's arguments.
        setup: The simulated GPUs.
        is_module: Whether the script is a module, run as `python -m` does.
        keep_writes: Whether the script's writes stay. Otherwise they are deleted after the run.
        network: Whether a script whose writes are deleted may reach other machines. A script whose
            writes stay may always reach them.
        report: The file for the answer; None to write no answer.
        summary: The file to which the process appends its memory use, or "1" for stderr, as for
            PLIMSOLL_REPORT; None for neither.
        record: The file for a recording of GPU memory; None to make no recording.
        parent: A process id. The script's process ends when the process with this id ends; None to
            let it run on.
        at_most_events: The number of events after which the script is stopped; None for no bound.
        steps: The number of steps after which training loops end; None for no bound.
        nproc_per_node: The number of ranks of a job on each machine; None if the script is not a
            job, or launches its ranks itself.
        nnodes: The number of machines of the job.
        ranks: The ranks of the job that run; None for all. plimsoll assumes that each of the
            remaining ranks does the same as one that runs.
        runs_distinct: Whether plimsoll runs only one rank of each group of equal ranks. To find the
            groups, it first runs one rank alone.
        groups: The file to which a rank that runs alone writes the process groups that it makes;
            None for any other run.
        survey: The file for a `Survey` of the program; None to make no survey.
        varied: The option that the script is to have in later runs, such as "--batch-size". A
            surveyed script that lacks it ends at once. None if there is no such option.
        environment: Environment variables for the script, besides the caller's.
        room: The GPU memory that the survey assumes PyTorch and NCCL can use; None for no bound.
        finds_least: Whether to find the least GPU memory with which the script runs. If true, the
            prediction's `other_cards` is empty.
        finds_need: Whether to find how much of the card's memory the script needs, with its own
            and with other allocators. Only a run with unlimited memory can find it.
        files: New texts for files that the script reads, by the file's absolute path. The files
            themselves stay as they are.
        scratch: The temporary folder in which the script runs, or None.
    """

    script: str
    arguments: list[str]
    setup: Setup
    is_module: bool = False
    keep_writes: bool = False
    network: bool = False
    report: str | None = None
    summary: str | None = None
    record: str | None = None
    parent: int | None = None
    at_most_events: int | None = None
    steps: int | None = None
    scratch: str | None = None
    nproc_per_node: int | None = None
    nnodes: int = 1
    ranks: list[int] | None = None
    groups: str | None = None
    runs_distinct: bool = False
    survey: str | None = None
    varied: str | None = None
    room: int | None = None
    finds_least: bool = False
    finds_need: bool = False
    files: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The script's name in messages: its path or module.

        For a script that comes with plimsoll, it is the result of `title_of`.
        """
        script = Path(self.script)
        name = script.name if is_kept(script) else self.script
        return title_of(self.script, self.arguments) or name

    def to_json(self) -> str:
        """Returns the request as text for the child process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Request:
        """Returns the request that `to_json` wrote."""
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Request:
        """Makes the request from the result of `asdict`, even after a round trip through JSON."""
        return cls(**{**values, "setup": Setup.from_dict(values["setup"])})
