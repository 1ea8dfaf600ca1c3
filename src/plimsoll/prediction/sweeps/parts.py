"""The cases and results of a sweep, as data."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, field
from typing import Any

from plimsoll.prediction.not_kept import NotKept, each_once
from plimsoll.prediction.recipes.served import Engine, engine_cards, engine_of_script, served_title

GOALS = ("least-memory", "fits", "most-samples", "least-cost")
"""Goals: the least memory, the smallest card, the most samples a second, and the least money."""


@dataclass(frozen=True)
class Case:
    """One prediction, or one replay.

    Attributes:
        kind: "prediction" or "replay".
        program: The script, or the recording.
        arguments: The script's arguments.
        gpu: The card; None for the recorded card.
        conf: The allocator's settings, in the syntax of PYTORCH_CUDA_ALLOC_CONF; None for the
            recorded ones.
        allocator: "native" (PyTorch's), "elastic" (plimsoll's) or "uncached" (without a cache).
        nproc_per_node: The number of a job's processes on each machine; None if the case is no job.
        nnodes: The number of a job's machines; None is the same as 1.
    """

    kind: str
    program: str
    arguments: tuple[str, ...]
    gpu: str | None
    conf: str | None
    allocator: str
    nproc_per_node: int | None = None
    nnodes: int | None = None

    @property
    def ranks(self) -> int:
        """The number of the job's ranks; 1 if the case is no job."""
        return (self.nproc_per_node or 1) * (self.nnodes or 1)

    @property
    def cards(self) -> int:
        """The number of cards that the case uses: one for each rank."""
        return self.ranks if self.engine is None else engine_cards(self.engine, self.arguments)

    @property
    def engine(self) -> Engine | None:
        """The serving engine that the case runs; None for a script or a recording."""
        return engine_of_script(self.program)

    @property
    def is_serving(self) -> bool:
        """Whether the case runs a serving engine."""
        return self.engine is not None

    @property
    def name(self) -> str:
        """The program's name in an answer: the path, or an engine's command with the model."""
        return self.program if self.engine is None else served_title(self.engine, self.arguments)

    @property
    def title(self) -> str:
        """The case in one line."""
        words = [self.program] if self.engine is None else [self.engine.command, "serve"]
        parts = [shlex.join([*words, *self.arguments]), self.gpu, self.conf]
        if self.allocator != "native":
            parts.append(self.allocator)
        if self.ranks > 1:
            parts.append(f"{self.ranks} ranks")
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True)
class Row:
    """The result of a case. Figures are None if the case failed, or if they are unknown.

    Attributes:
        case: The case.
        key: A digest of everything that the result depends on: the program's contents, the rest of
            the case, and the versions of plimsoll and PyTorch.
        error: Why the case failed, in one line; None if it succeeded.
        fits: Whether the program gets all the memory that it requests. If a prediction ended
            without an answer, `fits` is None too, and `result` tells why.
        peak_allocated_bytes: The most bytes in live blocks.
        peak_reserved_bytes: The most bytes reserved from the driver.
        device_used_bytes: The memory that nvidia-smi would show when reserved bytes are at their
            peak; for a replay, only the reserved bytes.
        total_bytes: The card's memory; None if unknown.
        step_seconds: The estimated time of a step.
        samples_per_second: The estimated number of samples that the program processes in a second.
            For a job, the samples of all ranks count if each rank has its own samples.
        result: The whole prediction (`Prediction.to_dict`, without its timeline), or the replay of
            each device.
        may_not_fit: Whether the program may not fit although `fits` is true: the CUDA context or
            the peak may be larger than estimated, by more than stays free.
    """

    case: Case
    key: str
    error: str | None = None
    fits: bool | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    device_used_bytes: int | None = None
    total_bytes: int | None = None
    step_seconds: float | None = None
    samples_per_second: float | None = None
    result: Any = None
    may_not_fit: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Returns the values for JSON: base units, stable keys."""
        values = asdict(self)
        return {**values.pop("case"), **values}


@dataclass(frozen=True)
class SweepParts:
    """All rows of a sweep.

    Attributes:
        goal: The goal, one of `GOALS`.
        rows: The rows in the order of the plan; after an interrupt, only those of finished cases.
        cases: The number of cases in total.
        reused: The number of rows from earlier runs.
        where: The machines that did the work, in a line.
        prices: The price of an hour of each card, by the card's name.
    """

    goal: str
    rows: list[Row]
    cases: int
    reused: int
    where: str
    prices: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Returns the values for JSON: base units, stable keys."""
        rows = [row.to_dict() for row in self.rows]
        return {**asdict(self), "rows": rows, "not_kept": [asdict(each) for each in self.not_kept]}

    @property
    def not_kept(self) -> list[NotKept]:
        """The guarantees, such as exact figures, that at least one prediction could not give."""
        found = [row.result for row in self.rows if isinstance(row.result, dict)]
        return each_once([NotKept(**each) for each in one.get("not_kept", [])] for one in found)
