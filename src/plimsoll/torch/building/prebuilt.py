"""Finds the libraries in a wheel of plimsoll that are built already for some PyTorch releases.

packaging/prebuilt.py builds them; an installation from source has none. The C++ headers of a
release are the same in its CPU and CUDA builds, so one library serves all of them. It calls only
functions of Python's stable ABI, so it serves every Python.
"""

from __future__ import annotations

import re
from pathlib import Path

from plimsoll.torch.building import versions

FOLDER = Path(__file__).parent / "libraries"
"""Only wheels have this folder."""
_OFFICIAL = re.compile(r"(\d+\.\d+\.\d+)(\+(cpu|cu\d+))?")
"""A release of PyTorch, and no build of other sources or for other makers' GPUs."""
_RELEASE = re.compile(r"-torch([\d.]+)-\w+\.so")


def file_name(name: str, release: str, digest: str) -> str:
    """Returns a library's file name, from its recipe's name, PyTorch's release and its digest."""
    return f"{name}-torch{release}-{digest[:16]}.so"


def find(name: str, digest: str) -> Path | None:
    """Returns the library for the installed PyTorch, None without one.

    Args:
        name: The name of its recipe.
        digest: The digest of its sources, so that another plimsoll's library is not found.

    Raises:
        InputError: If PyTorch is missing or too old.
    """
    versions.torch_version()
    release = _OFFICIAL.fullmatch(versions.torch_build())
    if release is None:
        return None
    library = FOLDER / file_name(name, release[1], digest)
    return library if library.is_file() else None


def note_of_releases(name: str) -> str:
    """Returns the end of a line with the releases for which a library is here; "" for none."""
    files = FOLDER.glob(f"{name}-torch*.so")
    releases = [match[1] for file in files if (match := _RELEASE.search(file.name))]
    if not releases:
        return ""
    ordered = sorted(releases, key=lambda release: [int(part) for part in release.split(".")])
    return f"; this wheel brings it for the CPU and CUDA builds of PyTorch {', '.join(ordered)}"
