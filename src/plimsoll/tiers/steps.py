"""Spilled memory comes back to the card by itself, after the steps of optimizers.

Between steps the least is in use, and nobody uses what moves. While nothing is in shared memory, a
step costs one comparison.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from plimsoll.tiers.engines import Engine

RebalanceTime = Literal["step", "manual"]

_engines: dict[int, Engine] = {}  # that may spill, by handle
_manual: set[int] = set()  # those that are left alone


def set_rebalance(engine: Engine, when: RebalanceTime) -> None:
    """Say when memory comes back: after steps, or only when `rebalance` is called."""
    if when == "manual":
        _manual.add(engine.handle)
    else:
        _manual.discard(engine.handle)


def watch_steps(engine: Engine) -> None:
    """Look after each step from now on."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    if not _engines:
        register_optimizer_step_post_hook(_after_step)
    _engines[engine.handle] = engine


def _after_step(*_: Any) -> None:
    import torch

    if torch.compiler.is_compiling():
        return
    for handle, engine in _engines.items():
        if engine.shared_allocated_bytes and handle not in _manual:
            try:
                engine.rebalance()
            except (RuntimeError, ValueError) as error:  # the program goes on as it would without
                _manual.add(handle)
                print(f"plimsoll: spilled memory stays where it is: {error}", file=sys.stderr)
