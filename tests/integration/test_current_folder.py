"""Tests that a command called from an untrusted folder imports nothing from it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

MINE = "import torch\nimport helper\nx = torch.zeros(helper.COUNT, device='cuda')\n"
TRAP = "raise SystemExit('imported from the current folder')\n"
OTHERS = ("numpy", "pyarrow", "plimsoll", "rich", "torch", "typer", "typing_extensions")


def plimsoll(*arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    # `-P` keeps the current folder off `sys.path`, as for the installed command.
    return subprocess.run(
        [sys.executable, "-P", "-m", "plimsoll", *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Makes a script and its module in a new folder. Returns the script."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "helper.py").write_text("COUNT = 1 << 20\n")
    (folder / "script.py").write_text(MINE)
    return folder / "script.py"


@pytest.fixture
def traps(tmp_path: Path) -> Path:
    """Makes a folder with a module for every name that Python and plimsoll import."""
    folder = tmp_path / "traps"
    folder.mkdir()
    for name in (*sys.stdlib_module_names, *OTHERS):
        (folder / f"{name}.py").write_text(TRAP)
    return folder


@pytest.mark.long
def test_a_folder_full_of_traps_changes_nothing(script: Path, traps: Path) -> None:
    found = [
        plimsoll("predict", script, "--gpu", "T4", "--json", folder=folder)
        for folder in (script.parent, traps)
    ]
    for done in found:
        assert done.returncode == 0, done.stderr
    here, there = (json.loads(done.stdout) for done in found)
    assert there["peak_allocated_bytes"] == here["peak_allocated_bytes"] == 4 << 20
    done = plimsoll("run", "--simulate", "T4", script, folder=traps)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_the_folder_of_the_script_comes_first(script: Path, tmp_path: Path) -> None:
    (script.parent / "colorsys.py").write_text("COUNT = 1 << 21\n")
    script.write_text(MINE.replace("import helper", "import colorsys as helper"))
    done = plimsoll("predict", script, "--gpu", "T4", "--json", folder=tmp_path)
    assert json.loads(done.stdout)["peak_allocated_bytes"] == 8 << 20


@pytest.mark.long
def test_a_module_is_found_in_the_current_folder(script: Path) -> None:
    for name in ("pyarrow", "rich", "typer", "runpy", "subprocess", "tempfile"):
        # plimsoll has imported these modules before the script runs
        (script.parent / f"{name}.py").write_text(TRAP)
    done = plimsoll("run", "--simulate", "T4", "-m", "script", folder=script.parent)
    assert done.returncode == 0, done.stderr
