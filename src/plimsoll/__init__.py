"""GPU memory for PyTorch that people can predict, see and stretch.

Put plimsoll's allocator under a PyTorch program (`install`). Without a GPU, predict what a CUDA
script needs (`predict`, `fit`). Record a program's memory (`record`), see it (`view`), ask why
it was used as it was (`explain`), and replay it under other settings (`replay`). Bring batches to
the GPU ahead of time (`PrefetchLoader`). Play with an allocator on a simulated GPU (`SimulatedGpu`,
`Allocator`). The command `plimsoll` does the same from a shell.

PYTEST_DONT_REWRITE: this word stops a warning of pytest under `plimsoll run`, which imports this
module before pytest.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# The modules load on first use, so that `import torch` stays fast. Every `import torch` imports
# this package, because plimsoll has an entry point in the group "torch.backends".
_MODULES = {
    "Allocator": "plimsoll.engine.simulator.allocator",
    "Diagnosis": "plimsoll.integrations.diagnosis.results",
    "DriverError": "plimsoll.base.errors",
    "Explanation": "plimsoll.explanation.explanation",
    "Fit": "plimsoll.prediction.fitting.results",
    "InputError": "plimsoll.base.errors",
    "LeakWarning": "plimsoll.explanation.leak_watch",
    "LeakWatch": "plimsoll.explanation.leak_watch",
    "LoaderStatistics": "plimsoll.offloading.data.statistics",
    "MemoryPool": "plimsoll.engine.simulator.allocator",
    "OptimizerPlacement": "plimsoll.offloading.tiers.optimizer",
    "OutOfMemoryError": "plimsoll.base.errors",
    "PinnedCollate": "plimsoll.offloading.data.collate",
    "Plan": "plimsoll.prediction.fitting.plans",
    "Prediction": "plimsoll.prediction.results",
    "PrefetchLoader": "plimsoll.offloading.data.loader",
    "RanksExplanation": "plimsoll.explanation.ranks.explain_ranks",
    "RanksViewResult": "plimsoll.explanation.ranks.view_ranks",
    "Recipe": "plimsoll.prediction.recipes.recipe",
    "Recorder": "plimsoll.engine.recorder.recorder",
    "RegionUse": "plimsoll.offloading.tiers.regions",
    "ReplayResult": "plimsoll.engine.replays.parts",
    "Replays": "plimsoll.engine.replays.results",
    "ScriptError": "plimsoll.base.errors",
    "SimulatedGpu": "plimsoll.engine.simulator.machine",
    "SimulatedMachine": "plimsoll.engine.simulator.machine",
    "SpillWarning": "plimsoll.offloading.tiers.limits",
    "Sweep": "plimsoll.prediction.sweeps.results",
    "ViewResult": "plimsoll.page.page_file",
    "cross_entropy": "plimsoll.offloading.training.cross_entropy",
    "copy_async": "plimsoll.offloading.data.copies",
    "doctor": "plimsoll.integrations.diagnosis.diagnose",
    "explain": "plimsoll.explanation.explain",
    "explain_oom": "plimsoll.explanation.oom_hook",
    "explain_ranks": "plimsoll.explanation.ranks.explain_ranks",
    "fit": "plimsoll.prediction.fitting.values",
    "fit_within": "plimsoll.prediction.fitting.within",
    "fuse_loss": "plimsoll.offloading.training.fused_loss",
    "graph_pool": "plimsoll.offloading.tiers.regions",
    "install": "plimsoll.torch.session.install",
    "is_paused": "plimsoll.offloading.tiers.regions",
    "load_ipython_extension": "plimsoll.integrations.notebook",
    "memory_snapshot": "plimsoll.offloading.tiers.reports",
    "memory_stats": "plimsoll.offloading.tiers.reports",
    "memory_summary": "plimsoll.offloading.tiers.reports",
    "metrics": "plimsoll.base.telemetry.metrics",
    "offload": "plimsoll.offloading.offload",
    "pause": "plimsoll.offloading.tiers.regions",
    "pin": "plimsoll.offloading.pin",
    "place_optimizer": "plimsoll.offloading.tiers.optimizer",
    "predict": "plimsoll.prediction.predict",
    "read_recording": "plimsoll.recordings.reading",
    "rebalance": "plimsoll.offloading.tiers.limits",
    "recipe": "plimsoll.prediction.recipes.recipe",
    "record": "plimsoll.torch.session.record",
    "recompute": "plimsoll.offloading.training.recompute",
    "region": "plimsoll.offloading.tiers.regions",
    "region_uses": "plimsoll.offloading.tiers.regions",
    "replay": "plimsoll.engine.replays.replay",
    "request_snapshot": "plimsoll.base.telemetry.requests",
    "resume": "plimsoll.offloading.tiers.regions",
    "set_tiers": "plimsoll.offloading.tiers.limits",
    "simulated_operation": "plimsoll.torch.session.simulated_operation",
    "split_batch": "plimsoll.offloading.training.split_batch",
    "sweep": "plimsoll.prediction.sweeps.sweep",
    "view": "plimsoll.page.page_file",
    "view_ranks": "plimsoll.explanation.ranks.view_ranks",
    "write_parquet": "plimsoll.recordings.parquet",
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
