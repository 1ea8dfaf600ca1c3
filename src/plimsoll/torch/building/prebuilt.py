"""Finds libraries in plimsoll's wheel that were built in advance for some PyTorch releases.

packaging/prebuilt.py builds them; an installation from source has none. The CPU build and the CUDA
builds of a release have the same C++ headers, so one library serves all of them. A library calls
only functions of Python's stable ABI, so it serves every Python version.
"""

from __future__ import annotations

import re
from pathlib import Path

from plimsoll.torch.building import versions

FOLDER = Path(__file__).parent / "libraries"
"""The folder with the libraries. Only wheels have it."""
_OFFICIAL = re.compile(r"(\d+\.\d+\.\d+)(\+(cpu|cu\d+))?")
"""Matches the version of an official release of PyTorch for the CPU or CUDA, and no other build."""
_RELEASE = re.compile(r"-torch([\d.]+)-\w+\.so")


def file_name(name: str, release: str, digest: str) -> str:
    """Returns the file name of a library: the recipe's name, PyTorch's release, and the digest."""
    return f"{name}-torch{release}-{digest[:16]}.so"


def find(name: str, digest: str) -> Path | None:
    """Returns the library for the installed PyTorch; None if there is none.

    Args:
        name: The name of the library's recipe.
        digest: The digest of the sources; the library must be built from these sources.

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
    """Returns the end of an error message: the releases with a prebuilt library, or "" if none."""
    files = FOLDER.glob(f"{name}-torch*.so")
    releases = [match[1] for file in files if (match := _RELEASE.search(file.name))]
    if not releases:
        return ""
    ordered = sorted(releases, key=lambda release: [int(part) for part in release.split(".")])
    return f"; this wheel brings it for the CPU and CUDA builds of PyTorch {', '.join(ordered)}"
