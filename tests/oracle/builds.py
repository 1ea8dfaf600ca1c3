"""Compiles the comparison for the unpacked versions of PyTorch."""

from __future__ import annotations

import subprocess
from importlib.util import find_spec
from pathlib import Path

from tests.oracle.wheels import FOLDER

_SOURCE = Path(__file__).parents[2]


def cuda_headers() -> Path | None:
    """Returns the folder of CUDA's headers in the package triton, or None if it is missing."""
    triton = find_spec("triton")
    if triton is None or triton.origin is None:
        return None
    folder = Path(triton.origin).parent / "backends" / "nvidia" / "include"
    return folder if (folder / "cuda_runtime_api.h").exists() else None


def build(version: str, source: Path = _SOURCE, to: Path = FOLDER / "programs") -> Path:
    """Builds the program that compares PyTorch's allocator with plimsoll's. Returns its path.

    Args:
        version: The PyTorch version whose allocator is compared.
        source: The folder of plimsoll's sources, from which plimsoll's allocator is compiled.
        to: The folder to build in.

    Raises:
        SystemExit: If CUDA's headers are missing.
        CalledProcessError: If the program does not compile.
    """
    headers = cuda_headers()
    if headers is None:
        raise SystemExit("CUDA's headers are missing; `pip install triton` brings them")
    options = {
        "PLIMSOLL_BINDINGS": "OFF",
        "PLIMSOLL_ORACLE": FOLDER,
        "PLIMSOLL_CUDA_HEADERS": headers,
    }
    defines = [f"-D{key}={value}" for key, value in options.items()]
    _run("cmake", "-S", source, "-B", to, "-G", "Ninja", *defines)
    _run("cmake", "--build", to, "--target", f"oracle_{version}", "--", "--quiet")
    return to / "tests" / "oracle" / f"oracle_{version}"


def _run(*command: str | Path) -> None:
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
