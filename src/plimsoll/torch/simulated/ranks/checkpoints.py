"""Distributed checkpoints of a job of which plimsoll runs only some ranks.

Each rank plans what it saves, and one rank checks that all plans together cover each tensor. The
plan of a pretended rank is a copy of a running rank's, so they never do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.ranks.pretended import pretended_world, running_ranks

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


def accept_missing_parts(module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads `torch.distributed.checkpoint.default_planner`, whose check then finds no fault.

    Where all ranks run, the check stays as it is.
    """
    execute()
    check = getattr(module, "_validate_global_plan", None)
    if check is None or (running_ranks() is None and pretended_world() is None):
        return
    # Up to PyTorch 2.11, the check returns whether the plans are valid; later, a list of faults.
    result: Any = True if "bool" in str(check.__annotations__.get("return")) else []
    module._validate_global_plan = lambda *_: result  # type: ignore[attr-defined]
