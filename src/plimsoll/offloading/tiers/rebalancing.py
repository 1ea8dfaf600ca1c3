"""Moves spilled memory back to the card automatically, after optimizer steps.

PyTorch calls a hook of this module after each optimizer step, because the least memory is in use
then. Moving a GPU's memory is safe only if no other thread uses that GPU. So the hook moves only
memory of the GPUs that hold the optimizer's parameters, and it moves nothing if the step runs
within a backward pass. While shared memory is empty, the hook costs almost no time.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal

from plimsoll.engine.current import current_engines

if TYPE_CHECKING:
    from plimsoll.engine.protocol import Engine

RebalanceTime = Literal["step", "manual"]

_engines: dict[int, Engine] = {}  # by handle: the engines that may spill
_manual: set[int] = set()  # handles of engines that rebalance only on request


def set_rebalance(engine: Engine, when: RebalanceTime) -> None:
    """Sets when spilled memory moves back to the card: after steps, or only by `rebalance`."""
    if when == "manual":
        _manual.add(engine.handle)
    else:
        _manual.discard(engine.handle)


def watch_steps(engine: Engine) -> None:
    """Makes each optimizer step from now on rebalance this engine's memory."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    if not _engines:
        register_optimizer_step_post_hook(_after_step)
    _engines[engine.handle] = engine


def _after_step(optimizer: Any, *_: Any) -> None:
    import torch

    if torch.compiler.is_compiling() or torch._C._current_graph_task_id() != -1:
        return  # other threads use the GPUs during a backward pass
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
        except (RuntimeError, ValueError) as error:  # an error here must not stop the program
            _manual.add(engine.handle)
            print(f"plimsoll: spilled memory stays where it is: {error}", file=sys.stderr)


def _handles_of(optimizer: Any) -> set[int]:
    """Returns the handles of the engines whose GPUs hold an optimizer's parameters."""
    engines = current_engines()
    opened = {} if engines is None else engines.opened()
    parameters = (each for group in optimizer.param_groups for each in group["params"])
    gpus = {parameter.device.index for parameter in parameters if parameter.is_cuda}
    return {opened[gpu].handle for gpu in gpus & opened.keys()}
