"""Examines this machine: what is installed, and what works when it is tried."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from plimsoll import _core
from plimsoll.base.errors import InputError, ScriptError
from plimsoll.base.systems import linux_instead
from plimsoll.base.telemetry.nvml import Nvml
from plimsoll.engine.real_gpus import count_gpus
from plimsoll.engine.simulator.allocator import Allocator
from plimsoll.engine.simulator.machine import SimulatedGpu
from plimsoll.integrations.diagnosis.parts import NO_GPU, PREDICTING, Ability, Installed
from plimsoll.integrations.diagnosis.results import Diagnosis
from plimsoll.prediction.predict import predict
from plimsoll.prediction.trials.kinds import Kind
from plimsoll.torch.building import versions
from plimsoll.torch.building.compiler import build, compiler_for, find_built, find_compiler
from plimsoll.torch.live.bridge import BRIDGE
from plimsoll.torch.simulated.library import SIMULATED_GPU

if TYPE_CHECKING:
    from plimsoll.torch.building.compiler import Recipe

BUILD = "plimsoll doctor --build"
_FIRST_BUILDS = "the first run builds plimsoll's library, which takes about a minute"
_NO_COMPILER = "there is no C++ compiler (g++ 11 or later) to build plimsoll's library once"
_TRIAL = "import torch\n\ntorch.ones(1024, device='cuda')\n"
_INSTALLERS = {
    "apt-get": "install -y g++",
    "dnf": "install -y gcc-c++",
    "zypper": "install -y gcc-c++",
    "pacman": "-S --noconfirm gcc",
    "apk": "add g++",
}
"""The programs that install packages, each with the arguments that install a C++ compiler."""


def doctor() -> Diagnosis:
    """Finds which parts of plimsoll work on this machine, and how to make the rest work.

    The function tries an allocator on a simulated GPU. If the library for predictions is already
    built, it also predicts a tiny script; this takes seconds. Nothing is built or installed.

    >>> import plimsoll
    >>> print(plimsoll.doctor())  # doctest: +SKIP
    """
    abilities = [_predicting(), _keeping_apart(), _running(), _reading(), _watching()]
    return Diagnosis(_installed(), abilities)


def build_libraries() -> None:
    """Builds the libraries that are compiled against the installed PyTorch, unless they exist.

    Raises:
        InputError: If PyTorch or a compiler is missing, or the compiler fails.
    """
    build(SIMULATED_GPU)
    if versions.is_cuda_build():
        build(BRIDGE)


def _installed() -> list[Installed]:
    gpus = Nvml().read().gpus
    return [
        Installed("plimsoll", _version("plimsoll-gpu")),
        Installed("Python", platform.python_version()),
        Installed("system", f"{platform.system()} {platform.machine()}"),
        Installed("PyTorch", _version("torch")),
        Installed("C++ compiler", _compiler()),
        Installed("NVIDIA GPUs", ", ".join(gpu.name for gpu in gpus) or None),
        Installed(
            "prometheus-client",
            _version("prometheus-client"),
            None if _version("prometheus-client") else "for plimsoll.metrics alone",
        ),
    ]


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _compiler() -> str | None:
    try:
        compiler = find_compiler("plimsoll")
    except InputError:
        return None
    asked = [compiler, "-dumpfullversion", "-dumpversion"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)  # noqa: S603
    return f"{Path(compiler).name} {done.stdout.strip()}".strip()


def _reading() -> Ability:
    """Returns the `Ability` to read recordings, which needs only the package itself."""
    name = "gpus, replay, explain, view"
    try:
        for module in (
            "plimsoll.engine.replays.replay",
            "plimsoll.explanation.explain",
            "plimsoll.page.page_file",
        ):
            import_module(module)
        Allocator(SimulatedGpu("1GiB")).malloc("1MiB")
    except (ImportError, _core.DriverError) as error:
        return Ability(name, False, str(error), "pip install --force-reinstall plimsoll-gpu")
    return Ability(name, True)


def _watching() -> Ability:
    instead = linux_instead()
    return Ability("top", instead is None, instead and f"Linux is needed; {instead}")


def _predicting() -> Ability:
    missing = _missing_for_libraries(PREDICTING)
    if missing is not None:
        return missing
    try:
        library = _library(SIMULATED_GPU)
        if library == "built":
            note = f"a tiny script was predicted in {_try_to_predict():.1f} s"
            return Ability(PREDICTING, True, note)
    except (InputError, ScriptError) as error:
        return Ability(PREDICTING, False, str(error))
    if library == "no compiler":
        return Ability(PREDICTING, False, _NO_COMPILER, compiler_command())
    return Ability(PREDICTING, True, _FIRST_BUILDS, BUILD)


def _library(recipe: Recipe) -> Literal["built", "can be built", "no compiler"]:
    """Tells whether a library that is compiled against PyTorch exists, or else can be built.

    Raises:
        InputError: If there is no safe folder for it.
    """
    if find_built(recipe) is not None:
        return "built"
    try:
        compiler_for(recipe)
    except InputError:
        return "no compiler"
    return "can be built"


_KEPT_APART = {
    Kind.OVERLAY: "by an overlay over every folder",
    Kind.WALL: "by a scratch layer and Landlock; writes that bypass the layer are refused",
    Kind.LAYER: "programs that make system calls without libc write to real files",
}


def _keeping_apart() -> Ability:
    """Returns the `Ability` to discard the files that predicted scripts write."""
    name = "discarding what a script writes"
    instead = linux_instead()
    if instead is not None:
        return Ability(name, False, f"Linux is needed; {instead}")
    from plimsoll.prediction.trials.offered import offered, why_not

    kinds = offered()
    if not kinds:
        return Ability(name, False, why_not(Kind.LAYER))
    best = kinds[0]
    return Ability(name, best is not Kind.LAYER, _KEPT_APART[best])


def _running() -> Ability:
    name = "run, install and record on a GPU"
    missing = _missing_for_libraries(name)
    if linux_instead() is None and count_gpus() == 0:
        return Ability(name, False, NO_GPU)
    if missing is not None:
        return missing
    if not versions.is_cuda_build():
        command = "pip install --force-reinstall torch"
        return Ability(name, False, "the installed PyTorch has no CUDA", command)
    without = "without PyTorch's memory statistics: "
    try:
        library = _library(BRIDGE)
    except InputError as error:
        return Ability(name, True, f"{without}{error}")
    if library == "built":
        return Ability(name, True)
    if library == "no compiler":
        return Ability(name, True, f"{without}there is no C++ compiler", compiler_command())
    return Ability(name, True, _FIRST_BUILDS, BUILD)


def _missing_for_libraries(name: str) -> Ability | None:
    """Returns the failed `Ability` if Linux or PyTorch is missing, and None if both are there."""
    instead = linux_instead()
    if instead is not None:
        return Ability(name, False, f"Linux is needed; {instead}")
    try:
        versions.torch_version()
    except InputError as error:
        note = str(error).split(": ")[0]
        return Ability(name, False, note, f"pip install 'torch>={versions.text(versions.OLDEST)}'")
    return None


def _try_to_predict() -> float:
    """Predicts a tiny script. Returns the seconds that this takes."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="plimsoll-doctor-") as folder:
        script = Path(folder) / "tiny.py"
        script.write_text(_TRIAL)
        predict(script, measure_need=False)
    return time.monotonic() - began


def compiler_command() -> str | None:
    """Returns the command that installs a C++ compiler on this system; None if unknown."""
    found = next((name for name in _INSTALLERS if shutil.which(name) is not None), None)
    if found is None:
        return None
    as_root = "" if os.geteuid() == 0 else "sudo "
    return f"{as_root}{found} {_INSTALLERS[found]}"
