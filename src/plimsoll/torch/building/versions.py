"""Finds the installed PyTorch's version and the rules for it, without importing PyTorch.

A rule is a way in which PyTorch behaves, for example how its allocator rounds sizes. plimsoll
behaves in the same way. include/plimsoll/torch_versions.inc lists the versions whose rules plimsoll
knows, and for each rule the first version that follows it. Under a newer PyTorch, plimsoll follows
the rules of the newest known version, prints a notice, and tests the libraries that it builds.
docs/versions.md shows with which versions plimsoll was tested, and how.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from plimsoll import _core
from plimsoll.base.errors import InputError

Version = tuple[int, int]
"""The major and the minor version."""


def _numbers(version: str) -> Version:
    major, minor = (int(part) for part in version.split(".")[:2])
    return major, minor


OLDEST: Version = _numbers(_core.OLDEST_VERSION)
"""The oldest version under which plimsoll runs."""
NEWEST: Version = _numbers(_core.NEWEST_VERSION)
"""The newest version whose rules are known."""


@dataclass(frozen=True)
class Companions:
    """The versions of CUDA and Triton that PyTorch's default CUDA build requires."""

    cuda: str
    triton: str


_COMPANIONS = {
    (2, 9): Companions("12.8", "3.5"),
    (2, 10): Companions("12.8", "3.6"),
    (2, 11): Companions("13.0", "3.6"),
    (2, 12): Companions("13.0", "3.7"),
    (2, 14): Companions("13.0", "3.8"),
    (2, 15): Companions("13.2", "3.9"),
}
"""Maps PyTorch versions to their companions.

A missing version has the same companions as the version before it.
"""


def companions(version: Version) -> Companions:
    """Returns the companions of a version of PyTorch, which must be `OLDEST` or later."""
    return next(found for since, found in reversed(_COMPANIONS.items()) if since <= version)


_RULES = _core.torch_rules()


def follows(rule: str, version: Version) -> bool:
    """Returns whether a version of PyTorch follows a rule of torch_versions.inc."""
    return version >= _RULES[rule]


def text(version: Version) -> str:
    """Returns a version in its usual form, "2.11"."""
    return f"{version[0]}.{version[1]}"


@cache
def torch_folder() -> Path:
    """Returns the folder in which PyTorch is installed.

    Raises:
        InputError: If it is not installed.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise InputError(f"PyTorch is not installed here: pip install 'torch>={text(OLDEST)}'")
    return Path(spec.origin).parent


@cache
def torch_build() -> str:
    """Returns the whole version of the installed PyTorch, such as "2.13.0+cpu".

    Raises:
        InputError: If PyTorch is not installed.
    """
    torch_folder()
    return importlib.metadata.version("torch")


@cache
def torch_version() -> Version:
    """Returns the major and minor version of the installed PyTorch.

    Raises:
        InputError: If it is not installed, or older than `OLDEST`.
    """
    version = _numbers(torch_build())
    if version < OLDEST:
        raise InputError(f"PyTorch {torch_build()} is too old: {text(OLDEST)} or later is needed")
    return version


def rules_version() -> str:
    """Returns the version whose rules hold for the installed PyTorch: its own, or the newest known.

    Raises:
        InputError: Like `torch_version`.
    """
    return text(min(torch_version(), NEWEST))


def is_known() -> bool:
    """Returns whether the rules of the installed PyTorch are known.

    Raises:
        InputError: Like `torch_version`.
    """
    return torch_version() <= NEWEST


@cache
def tell_if_unknown() -> None:
    """Prints once, on stderr, that the installed PyTorch is newer than the known versions.

    Raises:
        InputError: Like `torch_version`.
    """
    if not is_known():
        print(
            f"plimsoll: PyTorch {torch_build()} is newer than what this version knows "
            f"({text(OLDEST)} to {text(NEWEST)}): it follows the rules of {text(NEWEST)}",
            file=sys.stderr,
        )


def is_cuda_build() -> bool:
    """Returns whether the installed PyTorch can use NVIDIA GPUs.

    Raises:
        InputError: If it is not installed.
    """
    return (torch_folder() / "lib" / "libc10_cuda.so").exists()
