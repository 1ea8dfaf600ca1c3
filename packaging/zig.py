"""Finds the compiler that builds the wheels: the clang in the package ziglang."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

GLIBC = "2.28"
"""The oldest glibc that the wheels work with."""


def zig() -> Path:
    """Returns the path of the zig program in the package ziglang."""
    spec = find_spec("ziglang")
    if spec is None or spec.origin is None:
        sys.exit("ziglang is missing: make wheels installs it")
    return Path(spec.origin).parent / "zig"
