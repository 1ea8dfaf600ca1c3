"""Extracts files from PyTorch's CUDA wheels, such as the allocator's libraries and headers."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "build" / "oracle"
_ALLOCATOR = re.compile(
    r"torch/(lib/libc10(_cuda)?\.so|include/c10/.*|include/torch/headeronly/.*)"
)


def unpacked() -> list[str]:
    """Returns the versions that FOLDER already has."""
    return sorted(each.name.removeprefix("torch-") for each in FOLDER.glob("torch-*"))


def link_installed() -> str | None:
    """Links this environment's PyTorch into FOLDER, and returns its version.

    Returns None if no CUDA build of PyTorch is installed.
    """
    torch = find_spec("torch")
    if torch is None or torch.origin is None:
        return None
    folder = Path(torch.origin).parent
    if not (folder / "lib" / "libc10_cuda.so").exists():
        return None
    found = re.search(r"__version__ = '([0-9.]+)", (folder / "version.py").read_text())
    if found is None:
        return None
    FOLDER.mkdir(parents=True, exist_ok=True)
    link = FOLDER / f"torch-{found[1]}"
    if not link.exists():
        link.unlink(missing_ok=True)  # perhaps a dangling link to a deleted environment
        link.symlink_to(folder.parent)
    return found[1]


def unpack(version: str, wanted: re.Pattern[str] = _ALLOCATOR, within: Path = FOLDER) -> Path:
    """Returns a version's folder; if it does not exist yet, fills it with files from the wheel.

    Args:
        version: The version of a CUDA build.
        wanted: Matches the names of the files to keep.
        within: The folder that holds the folders of all versions.

    Raises:
        SystemExit: If pip finds no such wheel, or finds a build without CUDA.
    """
    folder = within / f"torch-{version}"
    if folder.exists():
        return folder
    within.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=within) as scratch:
        wheel = _download(version, Path(scratch))
        kept = Path(scratch) / "kept"
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            if "torch/lib/libc10_cuda.so" not in names:
                raise SystemExit(f"{wheel.name} is a build without CUDA")
            archive.extractall(kept, [name for name in names if wanted.fullmatch(name)])
        kept.rename(folder)
    return folder


def _download(version: str, to: Path) -> Path:
    # `===` matches 2.13.0 exactly, and no local build such as 2.13.0+cpu.
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "download",
        "-q",
        "--no-deps",
    ]
    if subprocess.run([*pip, "-d", str(to), f"torch==={version}"], check=False).returncode != 0:
        raise SystemExit(f"pip finds no wheel of torch {version}")
    return next(to.glob("*.whl"))
