"""`plimsoll run`: whose arguments are whose, and what is said where it cannot run."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch")
needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "plimsoll", "run", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text("import sys\nprint(sys.argv[1:])\nsys.exit(3)\n")
    return path


@needs_no_gpu
@pytest.mark.parametrize("options", [[], ["--allocator", "native"], ["--allocator", "torch"]])
def test_without_a_gpu_one_line_names_the_way_out(script: Path, options: list[str]) -> None:
    done = run(*options, script)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "plimsoll: there is no NVIDIA GPU here; --simulate H100 runs the script without one"
    ]


def test_a_script_that_does_not_exist_is_named() -> None:
    done = run("no_such.py")
    assert done.returncode == 2
    assert done.stderr == "plimsoll: there is no script 'no_such.py'\n"


def test_an_unknown_allocator_is_named(script: Path) -> None:
    done = run("--allocator", "fast", script)
    assert done.returncode == 2
    assert done.stderr == (
        "plimsoll: unknown allocator 'fast'; there are elastic, native and torch\n"
    )


@pytest.mark.parametrize("separator", [[], ["--"]])
def test_what_follows_the_script_is_its_own(script: Path, separator: list[str]) -> None:
    own = ["--gpus", "9", "-m", "--", "--help", "data.bin"]
    done = run("--simulate", "T4", script, *separator, *own)
    assert done.stdout == f"{own}\n"
    assert done.returncode == 3


def test_modules_are_not_simulated() -> None:
    done = run("--simulate", "T4", "-m", "some.module")
    assert done.returncode == 2
    assert done.stderr == "plimsoll: -m and --json do not go together with --simulate\n"
