"""The compiled functions and kernels of a predicted script, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class CompiledFunction:
    """One of the script's functions, or the rest of one after a graph break.

    Attributes:
        line: Its first line.
        graphs: The number of its graphs.
        recompilations: The number of graphs made because an earlier one's guards failed.
        reason: The reason for the first recompilation, in one line; None without one.
    """

    line: str
    graphs: int
    recompilations: int
    reason: str | None


@dataclass(frozen=True)
class EagerUse:
    """The use of the same script without its compiler.

    Attributes:
        peak_allocated_bytes: The most in live blocks.
        peak_reserved_bytes: The most reserved from the driver.
        step_seconds: The time of a step by the simulated clock; None without steps.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    step_seconds: float | None


@dataclass(frozen=True)
class CompiledUse:
    """The use of compiled functions and kernels.

    Attributes:
        functions: The functions that torch.compile made graphs of, those with the most first.
        graph_breaks: The reasons why Dynamo ended a graph early, each with its count.
        cuda_graphs: The number of CUDA graphs that were recorded, the script's own too.
        kernels: The number of different Triton kernels that were launched.
        own_kernels: The names of the kernels in the script itself.
        launches: The number of launches of Triton kernels.
        first_calls_bytes: The most memory that each activity of first calls, such as autotuning,
            took beside older blocks.
        peak_in: The activity at the peak of memory; None if that was at another time.
        eager: The use of eager execution; None if torch.compile was not used, or the script does
            not run without it.
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
        """Returns the use that `dataclasses.asdict` turned into plain data."""
        functions = [CompiledFunction(**function) for function in values["functions"]]
        eager = values.get("eager") and EagerUse(**values["eager"])
        return cls(**{**values, "functions": functions, "eager": eager})
