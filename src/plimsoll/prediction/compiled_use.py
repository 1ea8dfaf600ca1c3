"""What a predicted script compiled, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class CompiledFunction:
    """One of the script's functions, or what follows a graph break in one.

    Attributes:
        line: Where it begins.
        graphs: How many graphs were made of it.
        recompilations: How many of them because an earlier one did not hold any more.
        reason: Of the first one, in one line; None where there was none.
    """

    line: str
    graphs: int
    recompilations: int
    reason: str | None


@dataclass(frozen=True)
class EagerUse:
    """What the same script takes when nothing is compiled.

    Attributes:
        peak_allocated_bytes: The most in live blocks.
        peak_reserved_bytes: The most taken from the driver.
        step_seconds: Of a step, by the simulated clock; None where there is none.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    step_seconds: float | None


@dataclass(frozen=True)
class CompiledUse:
    """What ran compiled.

    Attributes:
        functions: What torch.compile made graphs of, those with the most first.
        graph_breaks: Why Dynamo ended a graph early, and how often.
        cuda_graphs: How many CUDA graphs were recorded, the script's own too.
        kernels: How many different kernels of Triton's were launched.
        own_kernels: The names of those that the script wrote itself.
        launches: How often kernels of Triton's were launched.
        first_calls_bytes: What only first calls took, beside what was live before: the most of it
            at once, by what was done.
        peak_in: In which of these memory was fullest; None where that was at another time.
        eager: What eager execution takes; None where torch.compile was not used, or the script does
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
        """The inverse of `dataclasses.asdict`."""
        functions = [CompiledFunction(**function) for function in values["functions"]]
        eager = values.get("eager") and EagerUse(**values["eager"])
        return cls(**{**values, "functions": functions, "eager": eager})
