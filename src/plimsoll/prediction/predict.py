"""Run a script on simulated GPUs and say what it needs."""

from __future__ import annotations

import os
import re
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.errors import InputError, ScriptError
from plimsoll.long_work import said_when_long
from plimsoll.prediction.child_process import run, started
from plimsoll.prediction.compiled_use import EagerUse
from plimsoll.prediction.distinct import find_roles
from plimsoll.prediction.options import Options
from plimsoll.prediction.ranges import with_range
from plimsoll.script_file import kept_script

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from os import PathLike

    from plimsoll.engines.protocol import AllocatorName, SpillPolicyName
    from plimsoll.prediction.rank_use import RankUse
    from plimsoll.prediction.request import Request
    from plimsoll.prediction.results import Prediction
    from plimsoll.simulator.machine import DriverName

_COMPILES = re.compile(rb"torch[._]compile|(?<!\bre)\.compile\(")


def predict(
    script: str | PathLike[str],
    arguments: Sequence[str] = (),
    *,
    module: bool = False,
    gpu: str = "H100",
    gpus: int | None = None,
    driver: DriverName = "linux",
    conf: str = "",
    allocator: AllocatorName = "native",
    policy: SpillPolicyName | None = None,
    dedicated: int | str | None = None,
    shared: int | str | None = None,
    host_memory: int | str | None = None,
    values: str = "auto",
    unknown: str = "balanced",
    at_most_events: int | None = None,
    measure_need: bool = True,
    keep_writes: bool = False,
    nproc_per_node: int | None = None,
    nnodes: int = 1,
    world: int | None = None,
    ranks: str | None = None,
    used: int | str | None = None,
    network: bool = False,
) -> Prediction:
    """Run a script on simulated GPUs, in a process of its own, and say what it needs.

    The script's output goes to stderr. What it writes to files only it sees: it is thrown away in
    the end, and the result lists it. Experiment trackers and model hubs are offline. A script that
    runs out of memory is run once more on a card of the same kind with memory without end, to find
    out what it would have needed; one that compiles is run once more without its compiler, for
    comparison.

    >>> import plimsoll
    >>> found = plimsoll.predict("train.py", ["--epochs", "1"], gpu="L4")  # doctest: +SKIP
    >>> found.fits, found.peak_reserved_bytes  # doctest: +SKIP
    (True, 7803502592)

    Args:
        script: A Python file, run as `python script arguments`.
        arguments: Its arguments.
        module: The script is a module's name instead, run as `python -m script arguments`.
        gpu: The card, as `plimsoll.gpus.gpu_profile` takes it.
        gpus: How many of them a machine has; by default 1, or as many as `nproc_per_node`.
        driver: "linux", or "wddm" for Windows', which goes on in the host's memory.
        conf: As PYTORCH_CUDA_ALLOC_CONF; by default what the environment, or the script, says.
        allocator: "native" (PyTorch's), "elastic" or "uncached".
        policy: "strict": a request that finds dedicated memory spent fails. "spill": it goes on in
            shared memory; with "elastic" by the allocator's doing, else by Windows' driver.
        dedicated: The card has only so much of its own memory for the program.
        shared: How much shared memory requests may spill into.
        host_memory: Instead of `shared`: the memory of the simulated machine, half of which is
            shared; by default as much as this one has.
        values: "auto": the values of tensors are computed as long as that is cheap; "real": all of
            them are; "none": only the few that lengths and control flow hang on. What is not
            computed is described by bounds, and drawn where the host reads it.
        unknown: What data is taken to be like that nobody computes: "balanced", "most" or "least"
            (of what sizes hang on), or "seed:N", balanced and drawn otherwise.
        at_most_events: The script is stopped after so many events; a request is one, a free two.
        measure_need: Run a script that ran out of memory once more; if not, the figures are those
            up to the failure.
        keep_writes: What the script writes stays, and it may talk to trackers and hubs.
        nproc_per_node: The script is a job of so many processes on each machine, each with a rank,
            as `torchrun` starts them. Launchers themselves run too, as any script.
        nnodes: How many machines that job has.
        world: How many ranks it has in all, instead of `nnodes`; on machines of eight, if nothing
            else is said.
        ranks: Which of them run: "distinct", one of each role, or numbers as "0,64,448". The
            others are taken to be like these.
        used: What a desktop or another process already has of each card, as "3GiB", or "auto" for
            what the driver says of this machine's first GPU.
        network: The script may reach other machines, as to download a model; what it writes is
            thrown away all the same.

    Raises:
        InputError: If there is no such script, module or card, the card has not as much memory,
            options contradict each other, or PyTorch or a compiler is missing.
        ScriptError: If the script failed for another reason than memory.
    """
    options = Options(
        gpu=gpu, gpus=gpus, driver=driver, conf=conf, allocator=allocator, policy=policy,
        dedicated=dedicated, shared=shared, host_memory=host_memory, values=values,
        unknown=unknown, at_most_events=at_most_events, keep_writes=keep_writes,
        nproc_per_node=nproc_per_node, nnodes=nnodes, world=world, ranks=ranks, used=used,
        network=network,
    )  # fmt: skip
    kept = script if module else kept_script(os.fspath(script))
    request = options.request(kept, arguments, is_module=module)
    return predict_request(request, measure_need=measure_need)


def predict_request(
    request: Request, *, measure_need: bool = True, shows_output: bool = True
) -> Prediction:
    """As `predict`, for a request that was checked.

    Args:
        request: What to run.
        measure_need: As for `predict`.
        shows_output: As for `plimsoll.prediction.child_process.run`; a second run shows none.
    """
    if request.runs_distinct:
        return _of_roles(request, measure_need=measure_need, shows_output=shows_output)
    # Where the output is not shown, whoever asked says what runs.
    said = said_when_long if shows_output else nullcontext
    if not measure_need:
        return run(request, shows_output=shows_output)
    with ExitStack() as stack:
        # Whether anything is compiled shows later: this only decides when the other trial begins.
        answer = _eagerly(request, stack) if _may_compile(request) else None
        first = run(request, shows_output=shows_output)
        with said(f"running {request.title} again, on cards with more memory or other data"):
            found = _with_need(request, first)
        if found.compiled is None or not found.compiled.functions or found.stopped:
            return found
        with said(f"running {request.title} again, without its compiler"):
            return _with_eager(found, answer or _eagerly(request, stack))


def _of_roles(request: Request, *, measure_need: bool, shows_output: bool) -> Prediction:
    """Of a job of which one rank of each role runs."""
    with said_when_long(f"running the first rank of {request.title}, to see which ranks differ"):
        roles = find_roles(request)
    asked = replace(request, ranks=roles.ranks, runs_distinct=False)
    found = predict_request(asked, measure_need=measure_need, shows_output=shows_output)
    ranks = [replace(use, stands_for=roles.stands_for.get(use.rank, 1)) for use in found.ranks]
    return replace(found, ranks=ranks)


def _eagerly(request: Request, stack: ExitStack) -> Callable[[], Prediction] | None:
    """Start the same without its compiler, beside it; None where nothing can be started."""
    setup = replace(request.setup, unlimited=True, is_eager=True)
    asked = replace(request, setup=setup, keep_writes=False, account=None, record=None)
    with suppress(InputError):  # what it writes cannot be thrown away here
        return stack.enter_context(started(asked, shows_output=False, is_aside=True))
    return None


def _may_compile(request: Request) -> bool:
    """Whether the script, or an argument of its, speaks of `torch.compile`."""
    if request.keep_writes:  # one trial would read what the other writes
        return False
    if any(_COMPILES.search(argument.encode()) for argument in request.arguments):
        return True
    with suppress(OSError):
        return _COMPILES.search(Path(request.script).read_bytes()) is not None
    return False


def _with_eager(found: Prediction, answer: Callable[[], Prediction] | None) -> Prediction:
    """What eager execution takes, where the script runs to its end without its compiler."""
    if answer is None:
        return found
    try:
        eager = answer()
    except (InputError, ScriptError):
        return found
    if eager.stopped is not None:
        return found
    use = EagerUse(eager.peak_allocated_bytes, eager.peak_reserved_bytes, eager.step_seconds)
    return replace(found, compiled=found.compiled and replace(found.compiled, eager=use))


def _with_need(request: Request, result: Prediction) -> Prediction:
    """What the script would have needed, if it ran out of memory, and ranges."""
    if result.fits is not False:
        return with_range(request, result)
    needed = run(replace(request, setup=replace(request.setup, unlimited=True)), shows_output=False)
    headroom = _room(result) - needed.device_used_bytes
    if result.shared is not None:  # all GPUs spill into the same memory of the host
        spills = [max(0, (use.card_bytes or 0) - result.total_bytes) for use in needed.devices]
        headroom -= sum(spills) - max(spills, default=0)
    if needed.limit_bytes is not None:
        headroom = min(headroom, needed.headroom_bytes)
    found = replace(
        needed,
        fits=False,
        out_of_memory=result.out_of_memory,
        num_ooms=result.num_ooms,
        total_bytes=result.total_bytes,
        why_unknown=None,
        headroom_bytes=headroom,
        devices=[
            replace(use, headroom_bytes=use.headroom_bytes + headroom - needed.headroom_bytes)
            if use.headroom_bytes is not None
            else use
            for use in needed.devices
        ],
        shared_used_bytes=result.shared_used_bytes,
        shared=result.shared,
        shared_by_category=result.shared_by_category,
        shared_lines=result.shared_lines,
        seconds=result.seconds + needed.seconds,
        ranks=_with_verdicts(needed, result),
    )
    return with_range(request, found)


def _with_verdicts(needed: Prediction, result: Prediction) -> list[RankUse]:
    """What each rank needs, and whether it got that: those that failed did not."""
    failed = {use.rank for use in result.ranks if use.fits is False}
    room = _room(result)
    return [
        replace(use, fits=use.rank not in failed and use.card_used_bytes <= room)
        if use.card_used_bytes is not None
        else use
        for use in needed.ranks
    ]


def _room(result: Prediction) -> int:
    """The memory that a card offers, with what requests may spill into."""
    return result.total_bytes + (result.shared.total_bytes if result.shared else 0)
