"""Tests README.md and README.zh.md: their length, their Python example and their commands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import blocks

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "README.zh.md"]
MOST_LINES = 150
NEEDS_A_GPU = ("plimsoll measure", "plimsoll run examples/", "plimsoll top")


def commands(page: Path) -> list[str]:
    """Returns a page's plimsoll commands without their comments."""
    lines = re.findall(r"^    (plimsoll .*)$", page.read_text("utf-8"), re.MULTILINE)
    return [re.sub(r"\s+#.*", "", line) for line in lines]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_it_is_short_and_its_example_in_python_runs(page: Path) -> None:
    text = page.read_text("utf-8")
    assert len(text.splitlines()) <= MOST_LINES
    (example,) = [block.text for block in blocks(text) if block.language == "python"]
    done = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, check=True
    )
    assert "PyTorch CUDA memory summary" in done.stdout


def test_both_languages_show_the_same_commands() -> None:
    assert commands(PAGES[0]) == commands(PAGES[1])
    assert len(commands(PAGES[0])) > 10


@pytest.mark.long
@pytest.mark.parametrize("command", commands(PAGES[0]))
def test_a_command_works_as_it_stands(command: str, tmp_path: Path) -> None:
    if command.startswith(NEEDS_A_GPU):
        pytest.skip("it needs a GPU")
    pytest.importorskip("torch")
    here = command.replace("page.html", str(tmp_path / "page.html"))
    here = here.replace("run.plim", str(tmp_path / "run.plim"))
    plimsoll = f"{sys.executable} -m plimsoll"
    done = subprocess.run(
        ["/bin/sh", "-c", here.replace("plimsoll ", f"{plimsoll} ", 1)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    # `fit --within` exits with 1 if the program cannot be reduced that far.
    assert done.returncode in ((0, 1) if "--within" in command else (0,)), done.stderr
    assert done.stdout
