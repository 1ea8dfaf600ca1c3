"""GPU memory for PyTorch that people can predict, see and stretch.

Put plimsoll's allocator under a PyTorch program (`install`), predict what a CUDA script needs
where there is no GPU (`predict`, `fit`), record a program's memory (`record`), see it (`view`), ask
why it was used as it was (`explain`), bring batches to the GPU ahead of time (`PrefetchLoader`),
replay it under other settings (`replay`), or play with an allocator on a simulated GPU
(`SimulatedGpu`, `Allocator`). The command `plimsoll` does the same from a shell.

PYTEST_DONT_REWRITE: where `plimsoll run` starts pytest, pytest finds it imported.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Loaded when asked for: every `import torch` looks in here whether plimsoll is wanted.
_MODULES = {
    "Allocator": "plimsoll.simulator",
    "Diagnosis": "plimsoll.diagnosis",
    "DriverError": "plimsoll.errors",
    "Explanation": "plimsoll.explanation",
    "Fit": "plimsoll.fitting",
    "InputError": "plimsoll.errors",
    "LeakWarning": "plimsoll.explanation",
    "LeakWatch": "plimsoll.explanation",
    "LoaderStatistics": "plimsoll.data",
    "MemoryPool": "plimsoll.simulator",
    "OptimizerPlacement": "plimsoll.tiers.optimizer",
    "OutOfMemoryError": "plimsoll.errors",
    "PinnedCollate": "plimsoll.data",
    "Plan": "plimsoll.fitting",
    "Prediction": "plimsoll.prediction",
    "PrefetchLoader": "plimsoll.data",
    "RanksExplanation": "plimsoll.ranks",
    "RanksViewResult": "plimsoll.ranks",
    "Recipe": "plimsoll.recipes",
    "Recorder": "plimsoll.recorder",
    "RegionUse": "plimsoll.tiers.regions",
    "ReplayResult": "plimsoll.replays",
    "Replays": "plimsoll.replays",
    "ScriptError": "plimsoll.errors",
    "SimulatedGpu": "plimsoll.simulator",
    "SimulatedMachine": "plimsoll.simulator",
    "SpillWarning": "plimsoll.tiers.limits",
    "Sweep": "plimsoll.sweeps",
    "ViewResult": "plimsoll.page",
    "cross_entropy": "plimsoll.training.cross_entropy",
    "copy_async": "plimsoll.data",
    "doctor": "plimsoll.diagnosis",
    "explain": "plimsoll.explanation",
    "explain_oom": "plimsoll.explanation",
    "explain_ranks": "plimsoll.ranks",
    "fit": "plimsoll.fitting",
    "fit_within": "plimsoll.fitting",
    "fuse_loss": "plimsoll.training.fused_loss",
    "graph_pool": "plimsoll.tiers.regions",
    "install": "plimsoll.session.install",
    "is_paused": "plimsoll.tiers.regions",
    "load_ipython_extension": "plimsoll.integrations.notebook",
    "memory_snapshot": "plimsoll.tiers.reports",
    "memory_stats": "plimsoll.tiers.reports",
    "memory_summary": "plimsoll.tiers.reports",
    "metrics": "plimsoll.telemetry.metrics",
    "offload": "plimsoll.offloading.offload",
    "pause": "plimsoll.tiers.regions",
    "pin": "plimsoll.offloading.pin",
    "place_optimizer": "plimsoll.tiers.optimizer",
    "predict": "plimsoll.prediction",
    "read_recording": "plimsoll.recordings",
    "rebalance": "plimsoll.tiers.limits",
    "recipe": "plimsoll.recipes",
    "record": "plimsoll.session.record",
    "recompute": "plimsoll.training.recompute",
    "region": "plimsoll.tiers.regions",
    "region_uses": "plimsoll.tiers.regions",
    "replay": "plimsoll.replays",
    "request_snapshot": "plimsoll.telemetry",
    "resume": "plimsoll.tiers.regions",
    "set_tiers": "plimsoll.tiers.limits",
    "simulated_operation": "plimsoll.session.simulated_operation",
    "split_batch": "plimsoll.training.split_batch",
    "sweep": "plimsoll.sweeps",
    "view": "plimsoll.page",
    "view_ranks": "plimsoll.ranks",
    "write_parquet": "plimsoll.recordings",
}

__all__ = [*_MODULES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'plimsoll' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
