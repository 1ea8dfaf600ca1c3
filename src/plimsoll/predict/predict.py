"""Run a script on simulated GPUs and say what it needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from plimsoll import _core
from plimsoll.errors import InputError, ScriptError
from plimsoll.gpus import gpu_profile
from plimsoll.predict.request import BAD_INPUT, Request
from plimsoll.predict.result import Prediction
from plimsoll.tiers.limits import SpillPolicyName, Tiers
from plimsoll.torch.library import build, torch_version
from plimsoll.units import format_size, parse_size

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

_CONF = "PYTORCH_CUDA_ALLOC_CONF"
AllocatorName = Literal["native", "elastic", "uncached"]
DriverName = Literal["linux", "wddm"]


def predict(
    script: str | PathLike[str],
    arguments: Sequence[str] = (),
    *,
    gpu: str = "H100",
    gpus: int = 1,
    driver: DriverName = "linux",
    conf: str = "",
    allocator: AllocatorName = "native",
    policy: SpillPolicyName | None = None,
    dedicated: int | str | None = None,
    shared: int | str | None = None,
    host_memory: int | str | None = None,
    measure_need: bool = True,
) -> Prediction:
    """Run a script on simulated GPUs, in a process of its own, and say what it needs.

    The script's output goes to stderr. A script that runs out of memory is run once more on a card
    of the same kind with memory without end, to find out what it would have needed.

    Args:
        script: A Python file, run as `python script arguments`.
        arguments: Its arguments.
        gpu: The card, as `plimsoll.gpus.gpu_profile` takes it.
        gpus: How many of them.
        driver: "linux", or "wddm" for Windows', which goes on in the host's memory.
        conf: As PYTORCH_CUDA_ALLOC_CONF; by default what the environment, or the script, says.
        allocator: "native" (PyTorch's), "elastic" or "uncached".
        policy: "strict": a request that finds dedicated memory spent fails. "spill": it goes on in
            shared memory; with "elastic" by the allocator's doing, else by Windows' driver.
        dedicated: The card has only so much of its own memory for the program.
        shared: How much shared memory requests may spill into.
        host_memory: Instead of `shared`: the memory of the simulated machine, half of which is
            shared; by default as much as this one has.
        measure_need: Run a script that ran out of memory once more; if not, the figures are those
            up to the failure.

    Raises:
        InputError: If there is no such script or card, the card has not as much memory, options
            contradict each other, or PyTorch or a compiler is missing.
        ScriptError: If the script failed for another reason than memory.
    """
    request = make_request(
        script, arguments, gpu=gpu, gpus=gpus, driver=driver, conf=conf, allocator=allocator,
        policy=policy, dedicated=dedicated, shared=shared, host_memory=host_memory,
    )  # fmt: skip
    result = _run(request)
    if result.out_of_memory is None or not measure_need:
        return result
    needed = _run(replace(request, unlimited=True))
    return replace(
        needed,
        fits=False,
        out_of_memory=result.out_of_memory,
        total_bytes=result.total_bytes,
        headroom_bytes=result.headroom_bytes + result.device_used_bytes - needed.device_used_bytes,
        shared_used_bytes=result.shared_used_bytes,
        shared=result.shared,
        shared_by_category=result.shared_by_category,
        shared_lines=result.shared_lines,
        seconds=result.seconds + needed.seconds,
    )


def make_request(
    script: str | PathLike[str],
    arguments: Sequence[str] = (),
    *,
    gpu: str = "H100",
    gpus: int = 1,
    driver: str = "linux",
    conf: str = "",
    allocator: str = "native",
    policy: str | None = None,
    dedicated: int | str | None = None,
    shared: int | str | None = None,
    host_memory: int | str | None = None,
) -> Request:
    """Check what `predict` is given, and build what it needs.

    Raises:
        InputError: As `predict`.
    """
    path = Path(script)
    if not path.is_file():
        raise InputError(f"there is no script {str(script)!r}")
    if gpus < 1 or gpus > 64:
        raise InputError(f"a machine has 1 to 64 GPUs, not {gpus}")
    if driver not in ("linux", "wddm"):
        raise InputError(f"unknown driver {driver!r}; there are linux and wddm")
    if allocator not in ("native", "elastic", "uncached"):
        raise InputError(f"unknown allocator {allocator!r}; there are native, elastic and uncached")
    profile = gpu_profile(gpu)
    tiers = Tiers.parse(policy, dedicated, shared)
    driver, policy = _who_spills(driver, allocator, tiers)
    room = profile.total_bytes - profile.context_bytes
    if tiers.dedicated_bytes is not None and tiers.dedicated_bytes > room:
        raise InputError(
            f"{format_size(tiers.dedicated_bytes)} of dedicated memory is more than {profile.name} "
            f"has beside its context: {format_size(room)}"
        )
    if shared is not None and policy == "strict":
        raise InputError("shared memory is for requests that spill; choose the policy spill")
    if shared is not None and host_memory is not None:
        raise InputError("shared memory is half of the host's; give one of them")
    conf = conf or os.environ.get("PYTORCH_ALLOC_CONF", os.environ.get(_CONF, ""))
    version = ".".join(map(str, torch_version()))
    try:
        _core.AllocatorConfig.parse(conf, min(version, _core.NEWEST_VERSION, key=_as_numbers))
    except _core.ConfigError as error:
        raise InputError(f"the given configuration: {error}") from None
    build()
    memory = None if host_memory is None else parse_size(host_memory)
    if tiers.shared_bytes is not None:
        memory = 2 * tiers.shared_bytes
    return Request(
        str(path), list(arguments), [gpu] * gpus, driver, conf, allocator, policy,
        tiers.dedicated_bytes, memory,
    )  # fmt: skip


def _who_spills(driver: str, allocator: str, tiers: Tiers) -> tuple[str, SpillPolicyName]:
    """The driver and the policy: where PyTorch's memory spills, the driver is Windows'."""
    if driver == "wddm":
        if tiers.policy == "strict":
            raise InputError("the wddm driver spills by itself; strict is for the linux driver")
        return driver, "spill"
    if tiers.policy == "spill":
        return "linux" if allocator == "elastic" else "wddm", "spill"
    return driver, "strict"


def _as_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def run_child(request: Request, *, stdout: int | None = None) -> int:
    """Run a request in a process of its own; returns its exit status."""
    with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
        file.write(request.to_json())
    try:
        command = [sys.executable, "-m", "plimsoll.predict.child", file.name]
        return subprocess.run(command, stdout=stdout, check=False).returncode  # noqa: S603
    finally:
        Path(file.name).unlink(missing_ok=True)


def _run(request: Request) -> Prediction:
    with tempfile.TemporaryDirectory(prefix="plimsoll-") as folder:
        path = Path(folder) / "report.json"
        status = run_child(replace(request, report=str(path)), stdout=sys.stderr.fileno())
        if not path.exists():
            if status == BAD_INPUT:
                raise InputError(f"{request.script} could not be simulated")
            if status == 0:
                raise InputError(f"{request.script} ended its process without a report (os._exit?)")
            raise ScriptError(request.script, status)
        report = json.loads(path.read_text())
    if report["error"] == "other":
        raise ScriptError(request.script, status)
    return Prediction.from_dict(report["prediction"])
