"""Reports what a simulated process compiled, from the counts of Dynamo and the simulated GPU."""

from __future__ import annotations

import re
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from plimsoll.prediction.compiled_use import CompiledFunction, CompiledUse
from plimsoll.recordings.analysis.lines import source_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from plimsoll.torch.simulated.compiled.first_calls import FirstCall
    from plimsoll.torch.simulated.simulation import Simulation

_RESUMED = re.compile(r"torch_dynamo_resume_in_(\w+)_at_(\d+)")
"""Dynamo's name for the code after a graph break."""


def compiled_use(
    simulation: Simulation, device: int, level: NDArray[np.int64]
) -> CompiledUse | None:
    """Returns the compiled functions and kernels so far; None if nothing was compiled.

    Args:
        simulation: The GPUs.
        device: The device of the report.
        level: The allocated bytes after each of the device's events.
    """
    dynamo = sys.modules.get("torch._dynamo.utils")
    functions = [] if dynamo is None else _functions(dynamo.get_compilation_metrics())
    counts = simulation.kernel_counts
    if not (functions or counts.launches or simulation.captures):
        return None
    taken, peak_in = _first_calls(simulation.first_calls.all, device, level)
    breaks = {} if dynamo is None else dynamo.counters["graph_break"]
    return CompiledUse(
        functions=functions,
        graph_breaks=dict(_by_first_line(breaks)),
        cuda_graphs=simulation.captures,
        kernels=len(counts.launches),
        own_kernels=sorted(counts.own & set(counts.launches)),
        launches=sum(counts.launches.values()),
        first_calls_bytes=taken,
        peak_in=peak_in,
    )


def _first_calls(
    calls: list[FirstCall], device: int, level: NDArray[np.int64]
) -> tuple[dict[str, int], str | None]:
    """Returns the `first_calls_bytes` and the `peak_in` of a `CompiledUse`."""
    taken: dict[str, int] = {}
    highest, peak_in = int(level.max(initial=0)), None
    for call in calls:
        began, ended = call.began[device], min(call.ended[device], len(level))
        if began >= ended:
            continue
        top = int(level[began:ended].max())
        before = int(level[began - 1]) if began else 0
        taken[call.what] = max(taken.get(call.what, 0), top - before)
        if top == highest and highest not in level[:began]:
            peak_in = call.what
    return {what: size for what, size in taken.items() if size}, peak_in


def _functions(metrics: list[Any]) -> list[CompiledFunction]:
    graphs: Counter[str] = Counter()
    again: Counter[str] = Counter()
    reasons: dict[str, str] = {}
    for each in metrics:
        if not each.graph_op_count or each.is_forward is False:
            continue
        name = _RESUMED.sub(r"\1, from line \2", each.co_name or "")
        line = source_line([(each.co_filename or "", each.co_firstlineno or 0, name)])
        graphs[line] += 1
        if not str(each.compile_id).endswith("/0"):
            again[line] += 1
            if reason := str(each.recompile_reason or "").strip():
                reasons.setdefault(line, reason.splitlines()[0].strip())
    return [
        CompiledFunction(line, count, again[line], reasons.get(line))
        for line, count in graphs.most_common()
    ]


def _by_first_line(breaks: Mapping[str, int]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for reason, count in breaks.items():
        counts[(reason.strip() or "unknown").splitlines()[0]] += count
    return counts
