"""Changes to the program itself, tried by running the script on a simulated GPU.

A recording cannot say what a smaller batch would have done; the script can. Each change is a few
lines around the script, so that the script stays as it is.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.errors import InputError, ScriptError
from plimsoll.explanation.parts import Advice, ScriptRun
from plimsoll.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plimsoll.engines.protocol import AllocatorName
    from plimsoll.prediction import Prediction

_AROUND = """\
import contextlib
import runpy
import sys
from pathlib import Path

import torch

{before}
sys.argv[0] = {script!r}
sys.path[0] = str(Path({script!r}).resolve().parent)
with {context}:
    runpy.run_path({script!r}, run_name="__main__")
"""

_CHECKPOINTS = """\
from torch.nn.modules.module import register_module_module_registration_hook
from torch.utils.checkpoint import checkpoint


def in_checkpoint(forward):
    def wrapped(*arguments, **named):
        if not torch.is_grad_enabled():
            return forward(*arguments, **named)
        return checkpoint(forward, *arguments, use_reentrant=False, **named)
    return wrapped


def on_registration(parent, name, child):
    if isinstance(parent, torch.nn.ModuleList) and child is not None:
        child.forward = in_checkpoint(child.forward)


register_module_module_registration_hook(on_registration)
"""

_ZERO_GRAD = """\
from torch.optim.optimizer import register_optimizer_step_post_hook

register_optimizer_step_post_hook(lambda optimizer, *_: optimizer.zero_grad(set_to_none=True))
"""

_CHANGES = (
    (
        "checkpoint the layers of each ModuleList: keep their inputs, and compute the rest again",
        "torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)",
        _CHECKPOINTS,
        "contextlib.nullcontext()",
    ),
    (
        "compute in bfloat16 where that is safe",
        "with torch.autocast('cuda', dtype=torch.bfloat16):",
        "",
        "torch.autocast('cuda', dtype=torch.bfloat16)",
    ),
    (
        "free the gradients right after each optimizer's step",
        "optimizer.step(); optimizer.zero_grad(set_to_none=True)",
        _ZERO_GRAD,
        "contextlib.nullcontext()",
    ),
)
_LEAST_SHARE = 0.01
_ALIKE = 0.05
"""By less do the peaks of one program differ, recorded and simulated; docs/predict.md has both."""


def try_changes(
    script: str,
    arguments: Sequence[str],
    *,
    gpu: str,
    conf: str,
    allocator: AllocatorName,
    vary: str | None,
    recorded_bytes: int,
    is_whole: bool,
) -> tuple[list[Advice], ScriptRun, list[str]]:
    """Run a script as it is and with changes.

    Args:
        script: The script.
        arguments: Its arguments.
        gpu: The card to simulate.
        conf: As PYTORCH_CUDA_ALLOC_CONF.
        allocator: Which one serves it.
        vary: An argument to halve, such as "--batch-size"; None for none.
        recorded_bytes: The most that the recorded program allocated.
        is_whole: Whether that is all it needed, for no request failed.

    Returns:
        What saves 1 % or more; the script as it is; notes.

    Raises:
        InputError: If the script or `vary` cannot be used, or if it allocates nothing on a GPU.
        ScriptError: If the script, as it is, ends with an error.
    """
    from plimsoll.prediction import predict

    halved = None if vary is None else _halved(arguments, vary)
    base = predict(script, arguments, gpu=gpu, conf=conf, allocator=allocator)
    if not base.peak_reserved_bytes:
        raise InputError(
            f"{script} allocates nothing on a GPU with these arguments, so that there is nothing "
            "to save; does it need one, such as --device cuda, after --?"
        )
    notes: list[str] = []
    advice: list[Advice] = []
    runs = 1
    if halved is not None:
        value, changed = halved
        result = predict(script, changed, gpu=gpu, conf=conf, allocator=allocator)
        advice += _advice(f"halve the {vary}", f"{vary} {value}", base, result)
        runs += 1
    with tempfile.TemporaryDirectory(prefix="plimsoll-") as folder:
        for number, (what, how, before, context) in enumerate(_CHANGES):
            around = Path(folder) / f"change_{number}.py"
            absolute = str(Path(script).resolve())
            around.write_text(_AROUND.format(before=before, script=absolute, context=context))
            runs += 1
            try:
                result = predict(around, arguments, gpu=gpu, conf=conf, allocator=allocator)
            except ScriptError:
                notes.append(f"with a change the script failed: {what}")
                continue
            advice += _advice(what, how, base, result)
    script_run = ScriptRun(
        script=script,
        gpu=base.gpu,
        peak_allocated_bytes=base.peak_allocated_bytes,
        peak_reserved_bytes=base.peak_reserved_bytes,
        fits=base.fits,
        seems_recorded=_is_alike(base.peak_allocated_bytes, recorded_bytes, is_whole),
        runs=runs,
    )
    return advice, script_run, notes


def _is_alike(simulated_bytes: int, recorded_bytes: int, is_whole: bool) -> bool:
    """Whether one program can have both peaks; a recorded one that failed would have had more."""
    if simulated_bytes < recorded_bytes * (1 - _ALIKE):
        return False
    return not is_whole or simulated_bytes <= recorded_bytes * (1 + _ALIKE)


def _halved(arguments: Sequence[str], vary: str) -> tuple[int, list[str]]:
    """Half the value of an argument, and the arguments with it."""
    for place, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name != vary:
            continue
        if not equals:
            value = arguments[place + 1] if place + 1 < len(arguments) else ""
        if not value.isdigit() or int(value) < 2:
            raise InputError(f"{vary} is to be halved, and is {value!r}")
        half = int(value) // 2
        rest = list(arguments[place + 1 + (not equals) :])
        return half, [*arguments[:place], vary, str(half), *rest]
    raise InputError(f"{vary} is to be halved, and is not among the script's arguments")


def _advice(what: str, how: str, base: Prediction, result: Prediction) -> list[Advice]:
    saves = base.peak_reserved_bytes - result.peak_reserved_bytes
    helps = result.fits and not base.fits
    if not result.fits or (not helps and saves < max(1, _LEAST_SHARE * base.peak_reserved_bytes)):
        return []
    return [
        Advice(
            kind="script",
            what=what,
            how=how,
            saves_bytes=0 if helps else saves,
            peak_reserved_bytes=result.peak_reserved_bytes,
            peak_reserved_range_bytes=None,
            peak_dedicated_bytes=None,
            serves_failed_requests=None if base.fits else True,
            num_alloc_retries=0,
            driver_seconds=0.0,
            note=f"by running the script on a simulated {base.gpu}, against "
            f"{format_size(base.peak_reserved_bytes)} as it is",
        )
    ]
