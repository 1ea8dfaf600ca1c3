"""The compiled functions and kernels of a predicted script, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class CompiledFunction:
    """One of the script's functions, or the part of a function after a graph break.

    Attributes:
        line: The function's first line, as "file:line function".
        graphs: The number of the function's graphs.
        recompilations: The number of graphs made because the guards of an earlier graph failed.
        reason: The reason for the first recompilation, in one line; None if there was none.
    """

    line: str
    graphs: int
    recompilations: int
    reason: str | None


@dataclass(frozen=True)
class EagerUse:
    """The memory and time of the script when it runs without torch.compile.

    Attributes:
        peak_allocated_bytes: The most bytes in live blocks.
        peak_reserved_bytes: The most bytes reserved from the driver.
        step_seconds: The time of a step by the simulated clock; None if there were no steps.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    step_seconds: float | None


@dataclass(frozen=True)
class CompiledUse:
    """The compiled functions and kernels that a script used.

    Attributes:
        functions: The functions that torch.compile made graphs of, those with the most graphs
            first.
        graph_breaks: The reasons why Dynamo ended a graph early, each with its count.
        cuda_graphs: The number of CUDA graphs that were recorded, including the script's own.
        kernels: The number of different Triton kernels that were launched.
        own_kernels: The names of the kernels in the script itself.
        launches: The number of launches of Triton kernels.
        first_calls_bytes: For each activity that happens only in first calls, such as autotuning:
            the most memory that it added to the blocks that were already live.
        peak_in: The activity, one of those in `first_calls_bytes`, during which memory peaks; None
            if memory peaks outside these activities.
        eager: The memory and time without the compiler; None if the script does not use
            torch.compile, or does not run without it.
    """

    functions: list[CompiledFunction]
    graph_breaks: dict[str, int]
    cuda_graphs: int
    kernels: int
    own_kernels: list[str]
    launches: int
    first_calls_bytes: dict[str, int] = field(default_factory=dict)
    peak_in: str | None = None
    eager: EagerUse | None = None

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Returns the object from the result of `dataclasses.asdict`."""
        functions = [CompiledFunction(**function) for function in values["functions"]]
        eager = values.get("eager") and EagerUse(**values["eager"])
        return cls(**{**values, "functions": functions, "eager": eager})
