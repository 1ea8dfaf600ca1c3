"""Predictions of programs whose processes use GPUs, each its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from plimsoll import InputError
from plimsoll.prediction import predict
from plimsoll.prediction.parts import STARTED_PROGRAM
from plimsoll.units import GiB, MiB
from tests.simulated import PROGRAMS

pytest.importorskip("torch")

PROCESSES = PROGRAMS / "prediction" / "processes.py"
ONE_PROCESS = "import torch.distributed as dist\ndist.init_process_group('nccl')\n"


def predict_command(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "plimsoll", "predict", str(PROCESSES), *options],
        capture_output=True,
        text=True,
        check=False,
    )


def test_spawned_processes_are_seen_and_the_largest_is_told_first() -> None:
    found = predict(PROCESSES, ["spawn"], gpu="T4")
    taken = [use.peak_allocated_bytes for use in found.processes]
    assert sorted(size or 0 for size in taken) == [3 * MiB, 30 * MiB, 31 * MiB]
    assert len({use.process for use in found.processes}) == 3
    assert all(use.device == 0 for use in found.processes)
    assert found.peak_allocated_bytes == 31 * MiB
    assert "processes.py:15 " in found.top_lines[0].line
    first = str(found).splitlines()[1]
    assert first.startswith("3 processes used simulated GPUs; the largest took ")
    assert first.endswith("they are not added up")


@pytest.mark.long
def test_a_table_of_cards_says_whose_figures_they_are() -> None:
    done = predict_command("--gpu", "T4", "--gpu", "L4", "--", "fork")
    assert done.returncode == 0, done.stderr
    answer, whose, _, head, *_ = done.stdout.splitlines()
    assert answer.endswith(" fits on T4, L4")
    assert "processes.py started used a simulated GPU: it took " in whose
    assert head.split()[0] == "card"


def test_a_forked_process_that_nobody_waits_for_is_seen() -> None:
    done = predict_command("--json", "--", "fork")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["uses_cuda"] is True
    assert found["peak_allocated_bytes"] == 44 * MiB
    (use,) = found["processes"]
    assert use["peak_allocated_bytes"] == 44 * MiB
    assert use["peak_reserved_bytes"] == found["peak_reserved_bytes"]


def test_what_a_process_has_no_memory_for_does_not_fit() -> None:
    found = predict(PROCESSES, ["fails"], gpu="T4")
    assert not found.fits
    assert "Tried to allocate 20.00 GiB" in (found.out_of_memory or "")
    assert found.peak_allocated_bytes == 20 * GiB + MiB


def test_a_process_that_was_killed_is_no_proof_that_no_memory_is_needed() -> None:
    with pytest.raises(InputError, match="used a simulated GPU, and was killed before it told"):
        predict(PROCESSES, ["killed"], gpu="T4")


def test_a_program_of_one_process_names_no_others() -> None:
    found = predict(PROGRAMS / "prediction" / "peak_that_is_reset.py", gpu="T4")
    assert found.processes == []
    assert "process" not in str(found)


def test_one_process_of_one_has_nothing_pretended(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(ONE_PROCESS + "import torch\ntorch.zeros(3, device='cuda')\n")
    assert predict(script, gpu="T4").assumptions == []


def test_python_programs_that_are_started_without_gpus_are_named(tmp_path: Path) -> None:
    script = tmp_path / "launch.py"
    script.write_text(
        "import os, subprocess, sys\n"
        "subprocess.run([sys.executable, '-I', '-c', 'print(1)'])\n"
        "subprocess.run(f'cd . && {sys.executable} -sE -c 1', shell=True)\n"
        "subprocess.run([sys.executable, '-c', 'print(2)'], env={})\n"
        "subprocess.run([sys.executable, '-c', 'print(3)'])\n"
        "subprocess.run(['true'])\n"
        "os.system('true')\n"
    )
    found = predict(script)
    assert not found.uses_cuda
    assert [one.what for one in found.assumptions] == [STARTED_PROGRAM] * 3
    first, *programs = str(found).splitlines()
    assert first.startswith(f"{script} itself never touches CUDA; the Python programs that it")
    assert programs[0] == f"  {sys.executable} -I -c print(1)"[:82]
    assert "needs no GPU memory" not in str(found)
