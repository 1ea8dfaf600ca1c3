"""What to change about a script so that it fits."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.errors import InputError
from plimsoll.files import NewFile
from plimsoll.fitting.attempts import Attempts
from plimsoll.fitting.plan_parts import PlannedChange, Tried
from plimsoll.fitting.plan_search import Search
from plimsoll.fitting.plans import Plan
from plimsoll.fitting.script_text import ScriptText
from plimsoll.gpus import gpu_profile
from plimsoll.prediction.distinct import find_roles
from plimsoll.prediction.options import Options
from plimsoll.prediction.used_memory import used_memory
from plimsoll.units import format_size, parse_memory

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from os import PathLike

    from plimsoll.fitting.attempts import Attempt
    from plimsoll.fitting.plan_search import Watcher
    from plimsoll.prediction.request import Request
    from plimsoll.prediction.survey import AllocatorUse


class _Nobody:
    """Hears nothing."""

    def begins(self, names: Sequence[str]) -> None:
        """Nothing."""

    def ended(self, attempt: Attempt) -> None:
        """Nothing."""


def fit_within(
    script: str | PathLike[str],
    arguments: Sequence[str] = (),
    *,
    within: int | str | None = None,
    gpu: str = "H100",
    apply: str | PathLike[str] | None = None,
    compiles: bool = False,
    watcher: Watcher | None = None,
    **options: Any,
) -> Plan:
    """Find the changes with which a script fits, for the least time: at most 15 simulations.

    Changes that leave the results as they were come first: gradients that are freed earlier, fused
    optimizers, a loss in chunks, modules that are computed again, saved tensors and optimizer state
    in the host's memory, the batch in parts, another allocator. Only where nothing of these fits,
    those are taken that do not: fewer bits, another optimizer.

    >>> import plimsoll
    >>> plan = plimsoll.fit_within("train.py", within="12GiB")  # doctest: +SKIP
    >>> print(plan.patch)  # doctest: +SKIP

    Args:
        script: A Python file.
        arguments: Its arguments.
        within: What the program may take of the card, CUDA's context included, as bytes or as
            "24GiB"; None for all of it.
        gpu: The card.
        apply: Where to write the changed script; None for nowhere.
        compiles: Whether `torch.compile` is tried too, which takes longer.
        watcher: Hears of each trial.
        options: As `predict` takes them.

    Raises:
        InputError: If an argument is bad, the script uses no GPU, or `apply` cannot be written.
        ScriptError: If the script, as it is, fails for another reason than memory.
    """
    began = time.perf_counter()
    profile = gpu_profile(gpu)
    whole = profile.total_bytes - used_memory(options.get("used"))
    room = whole if within is None else parse_memory(within)
    if room > whole:
        raise InputError(
            f"{format_size(room)} is more than {profile.name} has for it: {format_size(whole)}"
        )
    dedicated = room - profile.context_bytes
    if dedicated <= 0:
        raise InputError(
            f"CUDA's context alone takes {format_size(profile.context_bytes)} of {profile.name}"
        )
    asked = Options(gpu, **{**options, "dedicated": dedicated})
    request = asked.request(script, arguments)
    if request.runs_distinct:
        request = replace(request, ranks=find_roles(request).ranks, runs_distinct=False)
    if request.keep_writes:
        raise InputError("what the trials write is thrown away; --keep-writes is for one run")
    path = Path(request.script).resolve()
    attempts = Attempts(request, path, ScriptText.read(path), dedicated)
    search = Search(attempts, dedicated, watcher or _Nobody(), compiles=compiles)
    interrupted = False
    try:
        search.run()
    except KeyboardInterrupt:
        if not search.known:
            raise
        interrupted = True
    plan = _plan(search, attempts, request, room, apply)
    plan = replace(plan, seconds=time.perf_counter() - began, interrupted=interrupted)
    if apply is not None and plan.fits:
        with NewFile(str(apply)) as file:
            file.write(
                str(attempts.text(search.best.attempt.changes if search.best else ())).encode()
            )
    return plan


def _plan(
    search: Search,
    attempts: Attempts,
    request: Request,
    within: int,
    apply: str | PathLike[str] | None,
) -> Plan:
    base = search.base
    assert base.prediction is not None
    if not base.prediction.uses_cuda:
        raise InputError(str(base.prediction).splitlines()[0].removesuffix("."))
    done = [attempt for attempt in search.known if attempt.prediction is not None]
    least = min(done, key=lambda attempt: attempt.least_bytes())
    assert least.prediction is not None
    best = search.best
    chosen = least if best is None else best.attempt
    use = _least_use(least) if best is None else best.use
    seconds, before = chosen.step_seconds, base.step_seconds
    script = attempts.script
    changed = attempts.text(chosen.changes)
    tried = list(_tried(search.known))
    return Plan(
        script=request.script,
        gpu=base.prediction.gpu,
        within_bytes=within,
        fits=best is not None,
        plan=[
            PlannedChange(
                change.name, script.added(change.edit(script)), change.caveat, change.note
            )
            for change in chosen.changes
        ],
        allocator=use.allocator,
        conf=use.conf,
        command=_command(request, use, apply),
        patch=script.difference(changed, request.script),
        peak_allocated_bytes=use.peak_allocated_bytes,
        peak_reserved_bytes=(use if best is None else best.verified).peak_reserved_bytes,
        device_used_bytes=chosen.outside_bytes() + use.peak_reserved_bytes
        if best is None
        else best.verified.device_used_bytes,
        step_seconds=seconds,
        slowdown=None if seconds is None or not before else seconds / before,
        as_it_is_bytes=base.prediction.device_used_bytes,
        front=sorted(
            (each for each in tried if each.is_on_front), key=lambda each: each.step_seconds or 0.0
        ),
        tried=tried,
        floor_bytes=least.least_bytes(),
        floor_held=least.prediction.by_category,
        simulations=attempts.count,
        seconds=0.0,
    )


def _least_use(attempt: Attempt) -> AllocatorUse:
    return min(attempt.allocators(), key=lambda use: use.peak_reserved_bytes)


def _command(request: Request, use: AllocatorUse, apply: str | PathLike[str] | None) -> str:
    script = "the changed script" if apply is None else str(apply)
    if request.nproc_per_node is not None:
        nodes = f" --nnodes {request.nnodes}" if request.nnodes > 1 else ""
        count = f"{nodes} --nproc-per-node {request.nproc_per_node}"
        script = f"-m torch.distributed.run{count} {script}"
    if request.setup.allocator == "native" and use.allocator == "elastic":
        return f"plimsoll run {script}"
    if use.allocator == "native" and use.conf != request.setup.conf:
        return f"PYTORCH_CUDA_ALLOC_CONF={use.conf} python {script}"
    return f"python {script}" if use.allocator == "native" else f"plimsoll run {script}"


def _tried(known: Sequence[Attempt]) -> Iterable[Tried]:
    points = [
        (attempt.least_bytes(), attempt.step_seconds)
        for attempt in known
        if attempt.prediction is not None and attempt.step_seconds is not None
    ]
    for attempt in known:
        prediction = attempt.prediction
        seconds = attempt.step_seconds
        if prediction is None:
            yield Tried(
                [change.name for change in attempt.changes],
                *(None,) * 4,
                fits=False,
                keeps_results=all(change.keeps_results for change in attempt.changes),
                is_on_front=False,
                failure=attempt.failure,
            )
            continue
        least = attempt.least_bytes()
        yield Tried(
            changes=[change.name for change in attempt.changes],
            peak_allocated_bytes=prediction.peak_allocated_bytes,
            device_used_bytes=prediction.device_used_bytes,
            least_used_bytes=least,
            step_seconds=seconds,
            fits=attempt.fitting() is not None,
            keeps_results=all(change.keeps_results for change in attempt.changes),
            is_on_front=seconds is not None
            and not any(
                other is not None
                and size <= least
                and other <= seconds
                and (size, other) != (least, seconds)
                for size, other in points
            ),
            failure=None,
        )
