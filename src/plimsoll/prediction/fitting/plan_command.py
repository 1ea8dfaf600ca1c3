"""Makes the shell command that runs a changed script."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.base.units import MiB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plimsoll.prediction.survey import AllocatorUse
    from plimsoll.torch.simulated.setup import Setup


def plan_command(
    script: str,
    arguments: Sequence[str],
    setup: Setup,
    use: AllocatorUse,
    launcher: Sequence[str] = (),
) -> str:
    """Returns the command that runs a script in the way that was simulated.

    Args:
        script: The changed script.
        arguments: The script's arguments.
        setup: The simulated GPUs.
        use: The allocator with which the changed script fits.
        launcher: The arguments before the script, such as "-m" and a module that starts a job's
            ranks.
    """
    words = [_interpreter(), *launcher, script, *arguments]
    settings = ""
    if use.allocator == "elastic":
        words = [*_plimsoll(), "run", *_tiers(setup), *launcher, script, *arguments]
    elif use.allocator == "uncached":
        settings = "PYTORCH_NO_CUDA_MEMORY_CACHING=1 "
    elif use.conf:
        settings = f"PYTORCH_CUDA_ALLOC_CONF={shlex.quote(use.conf)} "
    return settings + shlex.join(words)


def _tiers(setup: Setup) -> list[str]:
    """Returns plimsoll's options for spilling, which places blocks in host memory; [] if unused."""
    if setup.policy != "spill" or setup.dedicated_bytes is None:
        return []
    options = ["--policy", "spill", "--dedicated", f"{setup.dedicated_bytes // MiB}MiB"]
    if setup.host_memory_bytes is not None:
        options += ["--shared", f"{setup.host_memory_bytes // 2 // MiB}MiB"]
    return options


def _plimsoll() -> list[str]:
    return ["plimsoll"] if shutil.which("plimsoll") else [_interpreter(), "-m", "plimsoll"]


def _interpreter() -> str:
    """Returns the shortest command that starts this Python interpreter."""
    for name in ("python", "python3"):
        found = shutil.which(name)
        if found is not None and _is_this(Path(found)):
            return name
    return sys.executable


def _is_this(found: Path) -> bool:
    """Returns whether a file is this interpreter and lies in the folder of `sys.executable`.

    The folder matters because several virtual environments can link to one interpreter.
    """
    here = Path(sys.executable)
    return found.parent.resolve() == here.parent.resolve() and found.samefile(here)
