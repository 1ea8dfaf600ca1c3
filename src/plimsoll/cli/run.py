"""`plimsoll run`."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from plimsoll.base.endings import check_new_recording
from plimsoll.base.errors import InputError
from plimsoll.base.files import check_can_be_made, check_is_new
from plimsoll.base.script_file import script_file
from plimsoll.base.telemetry.exit_summaries import FIRST_PROCESS
from plimsoll.cli import options
from plimsoll.engine.real_gpus import count_gpus

_SIMULATED = ("gpus", "driver", "host_memory", "values", "unknown")


@options.takes_simulation(*_SIMULATED)
def run(
    script: options.Script,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="The script's arguments.")
    ] = None,
    module: options.Module = False,
    allocator: Annotated[
        str | None,
        typer.Option(
            help="The allocator: elastic (plimsoll's own), native (plimsoll's, with PyTorch's "
            "rules) or torch (PyTorch's, unchanged). With --simulate: native, elastic, uncached "
            "(each request calls the driver) or wheel (the code in PyTorch's own package).",
            metavar="NAME",
            show_default="elastic, or native with --simulate",
        ),
    ] = None,
    conf: options.Conf = "",
    json: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Append the memory used to this file, as one JSON object for each process and "
            "GPU.",
        ),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Record every memory event to this .plim file."),
    ] = None,
    record_limit: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Keep only the newest events, in two files that have at most this size together, "
            "such as 1GiB.",
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="PORT",
            help="Serve memory figures to Prometheus on this port. Each rank of a job uses this "
            "port plus its local rank. Other machines can read them if you give ADDRESS:PORT.",
        ),
    ] = None,
    plan: options.PlanToFollow = None,
    policy: options.Policy = None,
    dedicated: options.Dedicated = None,
    shared: Annotated[
        str | None,
        typer.Option(
            help="How much host memory each GPU's requests may spill into at most.", metavar="SIZE"
        ),
    ] = None,
    cupy: Annotated[
        bool,
        typer.Option(
            "--cupy",
            help="The allocator also serves CuPy's arrays. The script must import PyTorch too.",
        ),
    ] = False,
    numba: Annotated[
        bool, typer.Option("--numba", help="The allocator also serves Numba's device arrays.")
    ] = False,
    rmm: Annotated[
        bool, typer.Option("--rmm", help="The allocator also serves RMM's buffers.")
    ] = False,
    simulate: Annotated[
        str | None,
        typer.Option(metavar="GPU", help="Run without a GPU, on a simulated card such as H100."),
    ] = None,
    *,
    simulation: options.Simulation,
) -> None:
    """Run a script with plimsoll's allocator, or on a simulated card.

    Everything after SCRIPT goes to the script. When the script ends, plimsoll prints to stderr how
    much memory each process used on each GPU. On a simulated card plimsoll makes up values that
    would take long to compute; a last line then says where the script read one. The exit status is
    that of the script, or 2 if the script cannot start.
    """
    own = arguments or []
    if own[:1] == ["--"]:
        own = own[1:]
    elif simulate is None:
        _check_place(script, own, is_module=module)
    _check_json(json)
    if not module:
        script = str(script_file(script))
    _ask_to_record(record, record_limit)
    _ask_for_metrics(metrics)
    libraries = {"CUPY": cupy, "NUMBA": numba, "RMM": rmm}
    if simulate is None:
        for name, value in simulation.items():
            if value != options.SIMULATION[name][1]:
                raise InputError(f"--{name.replace('_', '-')} goes with --simulate")
        command = [sys.executable, *(["-m"] if module else []), script, *own]
        tiers = {"POLICY": policy, "DEDICATED": dedicated, "SHARED": shared}
        _run_live(command, allocator or "elastic", conf, json, tiers, libraries, plan)
    if any(libraries.values()):
        raise InputError(
            "--cupy, --numba and --rmm need a real GPU: they do not go with --simulate"
        )
    from plimsoll.prediction.child_process import become
    from plimsoll.prediction.options import Options

    chosen = Options(
        gpu=simulate, conf=conf, allocator=allocator or "native", plan=plan, policy=policy,
        dedicated=dedicated, shared=shared, **simulation,
    )  # fmt: skip
    request = chosen.request(script, own, is_module=module)
    become(replace(request, summary=_summary(json)))


def _check_place(script: str, own: list[str], *, is_module: bool) -> None:
    """Raises InputError if --simulate comes after the script: the option would go to the script."""
    for place, one in enumerate(own):
        if one == "--simulate" or one.startswith("--simulate="):
            option = one if "=" in one else " ".join(own[place : place + 2])
            what = f"-m {script}" if is_module else script
            raise InputError(
                f"{option} stands after the script, so it would go to the script. To simulate a "
                f"card, write plimsoll run {option} {what}. If it is an option of the script, put "
                "-- right after the script"
            )


def _ask_to_record(record: Path | None, limit: str | None) -> None:
    """Sets environment variables that tell the script's processes to record.

    Raises:
        InputError: If the recording cannot be made, or the limit is not valid.
    """
    from plimsoll.engine.recorder.parts import earlier_path, parse_limit

    if record is None:
        if limit is not None:
            raise InputError("--record-limit goes with --record")
        return
    check_new_recording(record)
    for path in (record, earlier_path(record)) if limit is not None else (record,):
        check_is_new(path)
        check_can_be_made(path)
    os.environ["PLIMSOLL_RECORD"] = str(record.absolute())
    if limit is not None:
        parse_limit(limit)
        os.environ["PLIMSOLL_RECORD_LIMIT"] = limit


def _ask_for_metrics(metrics: str | None) -> None:
    """Sets an environment variable that tells the script's processes to serve metrics.

    Raises:
        InputError: If `metrics` names no port, or prometheus-client is not installed.
    """
    if metrics is not None:
        from plimsoll.base.telemetry.metrics import parse_place, prometheus_package

        parse_place(metrics)
        prometheus_package()
        os.environ["PLIMSOLL_METRICS"] = metrics


def _check_json(json: Path | None) -> None:
    """Raises InputError if the file of --json cannot be written.

    plimsoll writes the file when the script has ended. Without this check, the user would see the
    error only then, perhaps after hours.
    """
    if json is not None and str(json).startswith("-"):
        raise InputError(f"--json takes a file, such as --json run.json, and got {json}")
    if json is not None and (json.is_dir() or not json.absolute().parent.is_dir()):
        raise InputError(f"{json}: cannot be written: it is a folder, or its folder is missing")


def _summary(json: Path | None) -> str:
    """Returns the value of PLIMSOLL_REPORT: the file for the memory use, or "1" for stderr."""
    return "1" if json is None else str(json.resolve())


def _run_live(
    command: list[str],
    allocator: str,
    conf: str,
    json: Path | None,
    tiers: dict[str, str | None],
    libraries: dict[str, bool],
    plan: Path | None,
) -> NoReturn:
    """Runs the script in this process, in place of plimsoll's command.

    The process ID stays the same. So signals and stdin reach the script, and the caller of plimsoll
    gets the script's exit status.
    """
    from plimsoll.engine.plans.plan_file import read_plan
    from plimsoll.engine.plans.program_plan import require_elastic
    from plimsoll.offloading.tiers.limits import Tiers
    from plimsoll.torch.building.compiler import build
    from plimsoll.torch.building.versions import is_cuda_build
    from plimsoll.torch.live.bridge import BRIDGE

    Tiers.parse(*tiers.values())
    if allocator not in ("elastic", "native", "torch"):
        raise InputError(f"unknown allocator {allocator!r}; there are elastic, native and torch")
    if allocator == "torch" and any(libraries.values()):
        raise InputError("PyTorch's allocator serves PyTorch alone: choose elastic or native")
    if plan is not None:
        require_elastic(allocator)
        read_plan(plan)  # a bad plan ends the command before the script begins
    if count_gpus() == 0:
        raise InputError("there is no NVIDIA GPU here; --simulate H100 runs the script without one")
    if not is_cuda_build():
        raise InputError("the installed PyTorch has no CUDA; install a build for NVIDIA GPUs")
    if "plimsoll" not in importlib.metadata.entry_points(group="torch.backends").names:
        raise InputError("PyTorch cannot find plimsoll: install plimsoll-gpu again")
    if allocator != "torch":
        with suppress(InputError):  # if this fails, the script's process will print a warning
            build(BRIDGE)
    environment = dict(os.environ)
    environment["PLIMSOLL_ALLOCATOR"] = allocator
    environment["PLIMSOLL_REPORT"] = _summary(json)
    environment[FIRST_PROCESS] = str(os.getpid())  # the script's process keeps the id
    environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "1"
    environment |= {f"PLIMSOLL_{key}": value for key, value in tiers.items() if value is not None}
    environment |= {f"PLIMSOLL_{key}": "1" for key, wanted in libraries.items() if wanted}
    if plan is not None:
        environment["PLIMSOLL_PLAN"] = str(plan.absolute())
    if conf:
        environment["PYTORCH_ALLOC_CONF"] = environment["PYTORCH_CUDA_ALLOC_CONF"] = conf
    if sys.stdout is not None:  # None if stdout is closed
        sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], command, environment)  # noqa: S606
