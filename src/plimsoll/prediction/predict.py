"""Runs a script on simulated GPUs and reports the memory that it needs."""

from __future__ import annotations

import os
import re
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.base.errors import InputError, ScriptError
from plimsoll.base.long_work import said_when_long
from plimsoll.base.script_file import kept_script
from plimsoll.prediction.assumed import FETCHED
from plimsoll.prediction.child_process import run, started
from plimsoll.prediction.compiled_use import EagerUse
from plimsoll.prediction.distinct import find_roles
from plimsoll.prediction.options import Options
from plimsoll.prediction.ranges import with_doubtful_cards, with_range
from plimsoll.prediction.reruns import Reruns
from plimsoll.recordings.causes.fragments import Pieces, Way, with_fragments
from plimsoll.recordings.causes.outside_pytorch import CardParts, with_outside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from os import PathLike

    from plimsoll.engine.protocol import SimulatedAllocatorName, SpillPolicyName
    from plimsoll.engine.simulator.machine import DriverName
    from plimsoll.prediction.assumed import Assumed
    from plimsoll.prediction.rank_use import RankUse
    from plimsoll.prediction.request import Request
    from plimsoll.prediction.results import Prediction
    from plimsoll.recordings.causes.cause import Cause

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
    allocator: SimulatedAllocatorName = "native",
    plan: str | PathLike[str] | None = None,
    policy: SpillPolicyName | None = None,
    dedicated: int | str | None = None,
    shared: int | str | None = None,
    host_memory: int | str | None = None,
    values: str = "auto",
    unknown: str = "balanced",
    steps: int | None = None,
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
    """Runs a script on simulated GPUs, in a process of its own, and reports the memory it needs.

    The script's output goes to stderr. Only the script sees the files that it writes. plimsoll
    lists them in the result and deletes them at the end. Experiment trackers and model hubs are
    offline. A script that runs out of memory runs once more on a card of the same kind with
    unlimited memory, to find out how much it needs. A script that uses `torch.compile` runs
    once more without it, for comparison.

    >>> import plimsoll
    >>> found = plimsoll.predict("train.py", ["--epochs", "1"], gpu="L4")  # doctest: +SKIP
    >>> found.fits, found.peak_reserved_bytes  # doctest: +SKIP
    (True, 7803502592)

    Args:
        script: A Python file, run as `python script arguments`.
        arguments: The script's arguments.
        module: Whether the script is a module's name, run as `python -m script arguments`.
        gpu: The card, as `plimsoll.engine.gpus.profiles.gpu_profile` takes it.
        gpus: The number of cards of a machine. The default is `nproc_per_node`, or 1.
        driver: "linux", or "wddm" for Windows' driver, which spills into host memory.
        conf: The settings of PYTORCH_CUDA_ALLOC_CONF. The default is the setting of the environment
            or the script.
        allocator: "native" (PyTorch's), "elastic" (plimsoll's), or "uncached" (PyTorch's without a
            cache); "wheel" runs PyTorch's own allocator code from the installed CUDA build.
        plan: The file of a plan, by which "elastic" places large blocks (docs/plans.md).
        policy: "strict" or "spill". When the card's own memory is used up, a request fails under
            "strict". Under "spill" it gets shared memory, which is host memory that the GPU uses
            directly. The "elastic" allocator serves such requests itself. With any other allocator,
            Windows' driver serves them.
        dedicated: The part of the card's own memory that the program can use.
        shared: The shared memory that requests may spill into.
        host_memory: The host memory of the simulated machine. If requests can spill, half of it is
            the shared memory: give either `host_memory` or `shared`. The default is the memory of
            this machine.
        values: "auto" computes the values of tensors if that is cheap, "real" computes all of them,
            and "none" computes only the few that lengths and control flow depend on. For a value
            that is not computed, plimsoll keeps bounds. If the host reads such a value, plimsoll
            gives it a random number within the bounds.
        unknown: The contents assumed for values that are not computed: "balanced", "most" or
            "least" (the largest or the smallest sizes), or "seed:N" (balanced, from another seed).
        steps: The number of optimizer steps after which plimsoll ends a training loop: that of
            transformers' Trainer, or a `for` over a DataLoader. The rest of the script runs.
            plimsoll does not see memory that only later steps take.
        at_most_events: The number of events after which plimsoll stops the script. A request is one
            event, a free is two.
        measure_need: Whether a script that ran out of memory is run again to find out how much it
            needs. Otherwise the figures are those up to the failure.
        keep_writes: Whether to keep the files that the script writes, and let it reach trackers and
            hubs.
        nproc_per_node: The number of processes on each machine of a job, each with a rank, as
            `torchrun` starts them. A script that is a launcher itself needs no number.
        nnodes: The number of machines of the job.
        world: The number of ranks of the job, instead of `nnodes`. The default is eight ranks on
            each machine.
        ranks: The ranks that run: numbers such as "0,64,448", or "distinct" for one rank of each
            group of ranks that should use equal memory. plimsoll assumes that the other ranks are
            like these.
        used: The memory of each card that a desktop or another process already uses, such as
            "3GiB". "auto" asks the driver about this machine's first GPU.
        network: Whether the script can reach other machines, for example to download a model. Its
            writes are still deleted.

    Raises:
        InputError: If the script, the module or the card does not exist, an option asks for more
            memory than the card has, options contradict each other, or PyTorch or a compiler is
            missing.
        ScriptError: If the script failed for another reason than memory.
    """
    options = Options(
        gpu=gpu, gpus=gpus, driver=driver, conf=conf, allocator=allocator, plan=plan,
        policy=policy, dedicated=dedicated, shared=shared, host_memory=host_memory, values=values,
        unknown=unknown, steps=steps, at_most_events=at_most_events, keep_writes=keep_writes,
        nproc_per_node=nproc_per_node, nnodes=nnodes, world=world, ranks=ranks, used=used,
        network=network,
    )  # fmt: skip
    kept = script if module else kept_script(os.fspath(script))
    request = options.request(kept, arguments, is_module=module)
    return predict_request(request, measure_need=measure_need)


def predict_request(
    request: Request,
    *,
    measure_need: bool = True,
    shows_output: bool = True,
    is_aside: bool = False,
) -> Prediction:
    """Returns the prediction for a request whose options have been checked.

    Args:
        request: The request.
        measure_need: See `predict`.
        shows_output: See `plimsoll.prediction.child_process.run`. A second run shows no output.
        is_aside: See `plimsoll.prediction.child_process.run`. Ignored if `request.runs_distinct`.
    """
    if request.runs_distinct:
        return _of_roles(request, measure_need=measure_need, shows_output=shows_output)
    # A caller that hides the output has its own progress messages.
    said = said_when_long if shows_output else _unsaid
    if not measure_need:
        return run(request, shows_output=shows_output, is_aside=is_aside)
    with ExitStack() as stack:
        # The run without the compiler starts now, before it is known whether the script compiles:
        # `_may_compile` only searches the script's text and arguments. The result of that run is
        # used only if the script has compiled something.
        answer = _eagerly(request, stack) if _may_compile(request) else None
        first = run(request, shows_output=shows_output, is_aside=is_aside)
        with said("") as tell:
            found = with_doubtful_cards(_with_need(request, first, Reruns.of(request, first, tell)))
        if found.compiled is None or not found.compiled.functions or found.stopped:
            return found
        if found.serving is not None:  # the engine itself decides what it compiles
            return found
        with said(f"running {request.title} again, without torch.compile"):
            return _with_eager(found, answer or _eagerly(request, stack))


@contextmanager
def _unsaid(_: str) -> Iterator[Callable[[str], None]]:
    yield lambda _: None


def _of_roles(request: Request, *, measure_need: bool, shows_output: bool) -> Prediction:
    """Predicts a job by running only one rank of each group.

    The ranks of a group should use equal memory. An earlier run, of a single rank, finds the
    groups.
    """
    with said_when_long(f"running the first rank of {request.title}, to see which ranks differ"):
        roles = find_roles(request)
    asked = replace(request, ranks=roles.ranks, runs_distinct=False)
    found = predict_request(asked, measure_need=measure_need, shows_output=shows_output)
    ranks = [replace(use, stands_for=roles.stands_for.get(use.rank, 1)) for use in found.ranks]
    return replace(found, ranks=ranks)


def _eagerly(request: Request, stack: ExitStack) -> Callable[[], Prediction] | None:
    """Starts a parallel run without `torch.compile`, and returns a function that waits for it.

    Returns None if plimsoll cannot isolate the run's writes.
    """
    setup = replace(request.setup, unlimited=True, is_eager=True)
    asked = replace(request, setup=setup, keep_writes=False, summary=None, record=None)
    with suppress(InputError):  # raised if this machine cannot isolate a run's writes
        return stack.enter_context(started(asked, shows_output=False, is_aside=True))
    return None


def _may_compile(request: Request) -> bool:
    """Returns whether the script or one of its arguments names `torch.compile`."""
    if request.keep_writes:  # parallel trials would read each other's files
        return False
    if any(_COMPILES.search(argument.encode()) for argument in request.arguments):
        return True
    with suppress(OSError):
        return _COMPILES.search(Path(request.script).read_bytes()) is not None
    return False


def _with_eager(found: Prediction, answer: Callable[[], Prediction] | None) -> Prediction:
    """Adds the memory of the run without `torch.compile`, if that run reached the script's end."""
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


def _with_need(request: Request, result: Prediction, reruns: Reruns) -> Prediction:
    """Adds ranges and, if the script ran out of memory, the memory that it needs."""
    if result.serving is not None:  # a serving engine takes as much as its card has
        return result
    if result.fits is not False:
        return with_range(request, result, reruns)
    reruns.begin("without a limit of memory, to find out how much it needs")
    setup = replace(request.setup, unlimited=True)
    needed = run(replace(request, setup=setup, finds_need=True), shows_output=False)
    is_known = bool(needed.needs) and not needed.needs[0].fits
    headroom = needed.headroom_bytes if is_known else _room(result) - needed.device_used_bytes
    if result.shared is not None:  # all GPUs spill into the same host memory
        spills = [max(0, (use.card_bytes or 0) - result.total_bytes) for use in needed.devices]
        headroom -= sum(spills) - max(spills, default=0)
    if needed.limit_bytes is not None:
        headroom = min(headroom, needed.headroom_bytes)
    found = replace(
        needed,
        fits=False,
        needs=needed.needs if is_known else [],
        out_of_memory=result.out_of_memory,
        num_ooms=result.num_ooms,
        total_bytes=result.total_bytes,
        why_unknown=None,
        assumptions=[*needed.assumptions, *_fetched(result)],
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
    found = replace(found, causes=_with_outside(found))
    return with_range(request, replace(found, causes=_with_pieces(found)), reruns)


def _fetched(result: Prediction) -> list[Assumed]:
    """Returns the first run's notes about fetched files, which later runs find in the cache."""
    return [each for each in result.assumptions if each.what == FETCHED]


def _with_outside(found: Prediction) -> list[Cause]:
    """Adds the cause "memory outside PyTorch" if the script would fit without that memory."""
    if found.limit_bytes is not None or found.shared is not None or found.headroom_bytes >= 0:
        return found.causes
    own = found.context_bytes + found.nccl_bytes + found.peak_reserved_bytes
    parts = CardParts(
        total_bytes=found.total_bytes + found.used_bytes,
        pytorch_bytes=found.peak_reserved_bytes,
        context_bytes=found.context_bytes,
        nccl_bytes=found.nccl_bytes,
        processes_bytes=max(0, found.device_used_bytes - own) if found.shared_cards else 0,
        others_bytes=found.used_bytes,
    )
    return with_outside(found.causes, parts)


def _with_pieces(found: Prediction) -> list[Cause]:
    """Adds the cause "fragments" if the live blocks fit the card, and only fragments do not."""
    if found.needed_bytes is None or found.limit_bytes is not None:
        return found.causes
    outside = found.context_bytes + found.nccl_bytes
    pieces = Pieces(
        total_bytes=found.total_bytes,
        live_bytes=found.peak_allocated_bytes + outside,
        needed_bytes=found.needed_bytes,
        ways=[Way(need.way, need.setting, need.card_bytes, need.fits) for need in found.needs[1:]],
    )
    return with_fragments(found.causes, pieces)


def _with_verdicts(needed: Prediction, result: Prediction) -> list[RankUse]:
    """Returns what each rank used in the run `needed`, which had unlimited memory.

    A rank's `fits` says whether the rank fits the real card. It is False if the rank failed in the
    run `result`, or if it needs more memory than the card and the shared memory have together.
    """
    is_known = bool(needed.needs)
    failed = {use.rank for use in result.ranks if use.fits is False}
    room = _room(result)
    return [
        replace(
            use,
            fits=use.rank not in failed and (use.fits if is_known else use.card_used_bytes <= room),
        )
        if use.card_used_bytes is not None
        else use
        for use in needed.ranks
    ]


def _room(result: Prediction) -> int:
    """Returns the memory of a card plus the shared memory that requests may spill into."""
    return result.total_bytes + (result.shared.total_bytes if result.shared else 0)
