"""Tests predictions of modules, which run as with `python -m`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plimsoll import InputError
from plimsoll.base.units import MiB
from plimsoll.prediction.fitting.values import fit
from plimsoll.prediction.predict import predict
from tests.commands import run_plimsoll

pytest.importorskip("torch")

TRAIN = """
import sys
import torch
from .sizes import BYTES

x = torch.zeros(BYTES * int(sys.argv[-1]), dtype=torch.uint8, device="cuda")
print(__name__, __package__, sys.argv[1:])
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes a package `mine` with two modules in the current folder."""
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "sizes.py").write_text("BYTES = 4 << 20\n")
    (package / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.long
def test_a_module_runs_as_python_runs_it_and_is_named(folder: Path) -> None:
    done = run_plimsoll("predict", "-m", "mine.train", "--gpu", "T4", "--", "2", folder=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("mine.train fits on T4: ")
    assert "__main__ mine ['2']" in done.stderr


@pytest.mark.long
def test_the_largest_value_of_a_module_is_found(folder: Path) -> None:
    options = ("--vary=--batch-size", "--at-most", "2", "--gpu", "T4", "--json")
    done = run_plimsoll("fit", "-m", "mine.train", *options, folder=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["largest"] == 2


@pytest.mark.long
@pytest.mark.usefixtures("folder")
def test_python_takes_modules_too() -> None:
    found = predict("mine.train", ["3"], module=True, gpu="T4")
    assert (found.script, found.peak_allocated_bytes) == ("mine.train", 12 * MiB)
    largest = fit("mine.train", "--batch-size", module=True, gpu="T4", at_most=1).largest
    assert largest == 1


@pytest.mark.parametrize(
    ("name", "missing"), [("mine.nope", "mine.nope"), ("nope.train", "nope"), ("nope", "nope")]
)
def test_a_module_that_is_not_there_is_one_line(name: str, missing: str, folder: Path) -> None:
    done = run_plimsoll("run", "--simulate", "T4", "-m", name, folder=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"plimsoll: there is no module {missing}\n"


@pytest.mark.usefixtures("folder")
def test_a_prediction_of_a_module_that_is_not_there_names_it() -> None:
    with pytest.raises(InputError, match=r"^there is no module mine\.nope$"):
        predict("mine.nope", module=True)


def test_an_error_of_the_package_itself_is_shown_as_its_own(folder: Path) -> None:
    (folder / "mine" / "__init__.py").write_text("import does_not_exist\n")
    done = run_plimsoll("predict", "-m", "mine.train", folder=folder)
    assert done.returncode == 2
    assert "No module named 'does_not_exist'" in done.stderr
    assert "there is no module" not in done.stderr
    assert done.stderr.splitlines()[-1] == (
        "plimsoll: mine.train ended with status 1: "
        "ModuleNotFoundError: No module named 'does_not_exist' (mine/__init__.py:1 <module>)"
    )
