"""Tests the pytest plugin, which limits a test's GPU memory, in runs of pytest without a GPU."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch")

TESTS = """
import os
import pytest
import torch

@pytest.fixture
def model():
    return torch.nn.Linear(4096, 4096, bias=False).cuda()

def use(model):
    return model(torch.zeros(2048, 4096, device="cuda"))  # 32 MiB each, and cuBLAS's workspace

@pytest.mark.gpu_memory("160MiB")
def test_that_fits(model):
    use(model)

@pytest.mark.gpu_memory("100MiB")
def test_that_takes_too_much(model):
    print("printed")
    use(model)

@pytest.mark.gpu_memory("1GiB")
@pytest.mark.parametrize("name", ["a//b", "c::d"])
def test_with(name):
    assert torch.zeros(3, device="cuda").is_cuda

@pytest.mark.gpu_memory("1GiB")
def test_that_uses_no_gpu():
    pass

@pytest.mark.gpu_memory("1GiB")
def test_that_is_wrong():
    assert torch.zeros(3, device="cuda").shape == (4,)

@pytest.mark.gpu_memory("1GiB")
def test_that_runs_out():
    torch.zeros(1 << 40, device="cuda")

@pytest.mark.gpu_memory("1GiB")
def test_that_is_skipped():
    pytest.skip("not today")

@pytest.mark.gpu_memory("1GiB")
def test_of_the_card():
    assert torch.zeros(1, device="cuda").is_cuda
    assert torch.cuda.get_device_name() == "Tesla T4"

def test_without_a_budget():
    assert not torch.cuda.is_available()

@pytest.mark.gpu_memory("1GiB")
def test_that_ends_the_process():
    os._exit(3)
"""


def run(folder: Path, *options: str, tests: str = TESTS) -> str:
    """Runs pytest on tests in a new project. Returns its output."""
    (folder / "test_budgets.py").write_text(tests)
    (folder / "pytest.ini").write_text(
        "[pytest]\naddopts = -p no:cacheprovider\ngpu_memory_card = T4\nfilterwarnings =\n"
        "  error\n  ignore:Module already imported so cannot be rewritten\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-rA", *options],
        capture_output=True, text=True, check=False, cwd=folder,
    )  # fmt: skip
    return done.stdout + done.stderr


def outcomes(output: str) -> dict[str, str]:
    """Returns each test's result from pytest's summary."""
    return dict(re.findall(r"^(?:test_budgets.py::)(\S+(?:\[.*?\])?) ([A-Z]+)", output, re.M))


@pytest.mark.long
def test_budgets_are_kept_or_fail_with_the_lines(tmp_path: Path) -> None:
    output = run(tmp_path)
    assert outcomes(output) == {
        "test_that_fits": "PASSED",
        "test_that_takes_too_much": "FAILED",
        "test_with[a//b]": "PASSED",
        "test_with[c::d]": "PASSED",
        "test_that_uses_no_gpu": "FAILED",
        "test_that_is_wrong": "FAILED",
        "test_that_runs_out": "FAILED",
        "test_that_is_skipped": "SKIPPED",
        "test_of_the_card": "PASSED",
        "test_without_a_budget": "PASSED",
        "test_that_ends_the_process": "FAILED",
    }, output
    assert (
        "gpu_memory: 136.12 MiB is allocated on GPU 0 at the peak, 36.12 MiB more than the budget "
        "of 100.00 MiB\n8.12 MiB of it was there before the test\n"
        "Lines that hold the most at the peak:\n"
        "     72.12 MiB  test_budgets.py:11 use\n     64.00 MiB  test_budgets.py:8 model\n"
    ) in output
    assert "Captured stdout call" in output
    assert "gpu_memory: the test used no GPU, so its budget says nothing" in output
    assert "assert torch.Size([3]) == (4,)" in output
    assert "OutOfMemoryError: CUDA out of memory" in output
    assert "SKIPPED [1] test_budgets.py:41: not today" in output
    assert "the process with the simulated GPU ended before this test did: status 3" in output


KILLERS = """
import ctypes, os, signal
import pytest
import torch

pytestmark = pytest.mark.gpu_memory("1GiB")

@pytest.fixture
def deadly():
    os.kill(os.getpid(), signal.SIGKILL)

def held():
    assert torch.zeros(1, device="cuda").is_cuda

def test_first():
    held()

def test_in_its_setup(deadly):
    pass

def test_second():
    held()

def test_by_a_segmentation_fault():
    ctypes.string_at(0)

def test_that_ends_well_too_early():
    os._exit(0)

def test_last():
    held()
"""


@pytest.mark.long
@pytest.mark.parametrize("options", [[], ["-n", "2"]])
def test_a_test_that_kills_its_process_fails_alone(options: list[str], tmp_path: Path) -> None:
    output = run(tmp_path, *options, tests=KILLERS)
    found = re.findall(r"^(PASSED|FAILED) test_budgets.py::(\S+)", output, re.M)
    assert {name: outcome for outcome, name in found} == {
        "test_first": "PASSED",
        "test_in_its_setup": "FAILED",
        "test_second": "PASSED",
        "test_by_a_segmentation_fault": "FAILED",
        "test_that_ends_well_too_early": "FAILED",
        "test_last": "PASSED",
    }, output
    ended = "the process with the simulated GPU ended before this test did: status "
    assert len(re.findall(f"^{ended}", output, re.M)) == 3, output


@pytest.mark.long
def test_tests_that_never_begin_say_why(tmp_path: Path) -> None:
    tests = (
        "import pytest, torch\nassert not torch.cuda.is_available(), 'not there'\n"
        "@pytest.mark.gpu_memory('1GiB')\ndef test_one():\n    pass\n"
        "@pytest.mark.gpu_memory('1GiB')\ndef test_two():\n    pass\n"
    )
    output = run(tmp_path, tests=tests)
    assert outcomes(output) == {"test_one": "FAILED", "test_two": "FAILED"}, output
    assert output.count("E   AssertionError: not there") == 2, output


@pytest.mark.long
def test_each_process_of_xdist_runs_its_own(tmp_path: Path) -> None:
    output = run(tmp_path, "-n", "1", "-k", "fits or without")
    assert "2 passed" in output, output


@pytest.mark.parametrize(
    ("mark", "complaint"),
    [
        ('"much"', "gpu_memory: not a size: 'much'; write 24GiB, 512MiB or a number of bytes"),
        ("", 'gpu_memory: give one size, as in @pytest.mark.gpu_memory("2GiB")'),
    ],
)
def test_a_budget_that_is_none_is_refused_before_any_test(
    mark: str, complaint: str, tmp_path: Path
) -> None:
    tests = f"import pytest\n@pytest.mark.gpu_memory({mark})\ndef test_it():\n    pass\n"
    output = run(tmp_path, tests=tests)
    assert f"ERROR: test_budgets.py::test_it: {complaint}\n" in output
    assert outcomes(output) == {}


def test_an_unknown_card_is_named(tmp_path: Path) -> None:
    tests = "import pytest\n@pytest.mark.gpu_memory('1GiB')\ndef test_it():\n    pass\n"
    output = run(tmp_path, "-o", "gpu_memory_card=T5", tests=tests)
    assert "ERROR: gpu_memory: unknown GPU 'T5'" in output
