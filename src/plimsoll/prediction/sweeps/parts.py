"""What a sweep runs and what came of it, as data."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, field
from typing import Any

from plimsoll.prediction.not_kept import NotKept, each_once

GOALS = ("least-memory", "fits", "most-samples", "least-cost")
"""What is best: the least memory; the smallest card; the most samples a second; the least money."""


@dataclass(frozen=True)
class Case:
    """One prediction, or one replay.

    Attributes:
        kind: "prediction" or "replay".
        program: The script, or the recording.
        arguments: Of the script.
        gpu: The card; None for the recorded one.
        conf: As PYTORCH_CUDA_ALLOC_CONF; None for the recorded one.
        allocator: "native", "elastic" or "uncached".
    """

    kind: str
    program: str
    arguments: tuple[str, ...]
    gpu: str | None
    conf: str | None
    allocator: str

    @property
    def title(self) -> str:
        """All of it in a line."""
        words = [self.program, *self.arguments]
        parts = [shlex.join(words), self.gpu, self.conf]
        if self.allocator != "native":
            parts.append(self.allocator)
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True)
class Row:
    """What came of a case. Figures are None where it failed, or they are not known.

    Attributes:
        case: What was run.
        key: A digest of all that it hangs on: the program's contents, the rest of the case, and the
            versions of plimsoll and PyTorch.
        error: Why it failed, in a line; None where it did not.
        fits: Whether the program gets all the memory it asks for; None also where a prediction
            ended without knowing it: `result` says why.
        peak_allocated_bytes: The most in live blocks.
        peak_reserved_bytes: The most taken from the driver.
        device_used_bytes: What nvidia-smi would show at that peak; of a replay, what is reserved.
        total_bytes: The card's memory; None where nothing says it.
        step_seconds: How long a step takes, about.
        samples_per_second: Likewise.
        result: All of the prediction (`Prediction.to_dict`, without its timeline), or of the replay
            of each device.
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

    def to_dict(self) -> dict[str, Any]:
        """For JSON: base units, stable keys."""
        values = asdict(self)
        return {**values.pop("case"), **values}


@dataclass(frozen=True)
class SweepParts:
    """All rows of a sweep.

    Attributes:
        goal: What is best, of `GOALS`.
        rows: In the order of the plan; of an interrupted sweep, those that are done.
        cases: How many there are to do in all.
        reused: How many rows were done before.
        where: Where the work was done, in a line.
        prices: Of a card for an hour, by its name.
    """

    goal: str
    rows: list[Row]
    cases: int
    reused: int
    where: str
    prices: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: base units, stable keys."""
        rows = [row.to_dict() for row in self.rows]
        return {**asdict(self), "rows": rows, "not_kept": [asdict(each) for each in self.not_kept]}

    @property
    def not_kept(self) -> list[NotKept]:
        """The promises that some prediction could not keep."""
        found = [row.result for row in self.rows if isinstance(row.result, dict)]
        return each_once([NotKept(**each) for each in one.get("not_kept", [])] for one in found)
