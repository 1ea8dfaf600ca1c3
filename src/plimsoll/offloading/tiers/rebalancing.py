"""Spilled memory comes back to the card by itself, after the steps of optimizers.

Between steps the least is in use, and nobody uses what moves, where one thread works with a GPU.
Nothing moves after steps within a backward pass, nor on GPUs that the optimizer has no parameters
on, for other threads may be at work there. While nothing is in shared memory, a step costs one
comparison.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal

from plimsoll.engine.current import current_engines

if TYPE_CHECKING:
    from plimsoll.engine.protocol import Engine

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


def _after_step(optimizer: Any, *_: Any) -> None:
    import torch

    if torch.compiler.is_compiling() or torch._C._current_graph_task_id() != -1:
        return  # in the midst of a backward pass, other threads use the GPUs
    spilled = [
        engine
        for handle, engine in list(_engines.items())
        if engine.shared_allocated_bytes and handle not in _manual
    ]
    if not spilled:
        return
    handles = _handles_of(optimizer)
    for engine in spilled:
        if engine.handle not in handles:
            continue
        try:
            engine.rebalance()
        except (RuntimeError, ValueError) as error:  # the program goes on as it would without
            _manual.add(engine.handle)
            print(f"plimsoll: spilled memory stays where it is: {error}", file=sys.stderr)


def _handles_of(optimizer: Any) -> set[int]:
    """The engines of the GPUs that an optimizer's parameters are on."""
    engines = current_engines()
    opened = {} if engines is None else engines.opened()
    parameters = (each for group in optimizer.param_groups for each in group["params"])
    gpus = {parameter.device.index for parameter in parameters if parameter.is_cuda}
    return {opened[gpu].handle for gpu in gpus & opened.keys()}
