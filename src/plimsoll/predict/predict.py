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
from plimsoll.torch.library import build, torch_version
from plimsoll.units import parse_size

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
        host_memory: Of the simulated machine; by default as much as this one has.
        measure_need: Run a script that ran out of memory once more; if not, the figures are those
            up to the failure.

    Raises:
        InputError: If there is no such script or card, or PyTorch or a compiler is missing.
        ScriptError: If the script failed for another reason than memory.
    """
    request = make_request(
        script, arguments, gpu=gpu, gpus=gpus, driver=driver, conf=conf, allocator=allocator,
        host_memory=host_memory,
    )  # fmt: skip
    result = _run(request)
    if result.out_of_memory is None or not measure_need:
        return result
    needed = _run(replace(request, unlimited=True))
    return replace(
        needed,
        fits=False,
        out_of_memory=result.out_of_memory,
        headroom_bytes=needed.total_bytes - needed.device_used_bytes,
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
    gpu_profile(gpu)
    conf = conf or os.environ.get("PYTORCH_ALLOC_CONF", os.environ.get(_CONF, ""))
    version = ".".join(map(str, torch_version()))
    try:
        _core.AllocatorConfig.parse(conf, min(version, _core.NEWEST_VERSION, key=_as_numbers))
    except _core.ConfigError as error:
        raise InputError(f"the given configuration: {error}") from None
    build()
    memory = None if host_memory is None else parse_size(host_memory)
    return Request(str(path), list(arguments), [gpu] * gpus, driver, conf, allocator, memory)


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
