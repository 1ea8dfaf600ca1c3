"""Tests that the stub of the native module agrees with the module."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import plimsoll


def test_the_stub_is_up_to_date(tmp_path: Path) -> None:
    fresh = tmp_path / "_core.pyi"
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "plimsoll._core"]
    subprocess.run([*command, "-o", str(fresh)], check=True)
    committed = Path(plimsoll.__file__).with_name("_core.pyi")
    assert fresh.read_text() == committed.read_text(), "run make stub"
