"""Tests predictions of programs with several processes that use GPUs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from plimsoll.base.units import GiB, MiB, format_size
from plimsoll.engine.gpus.profiles import gpu_profile
from plimsoll.prediction.assumed import ENDED_BY_SIGNAL, STARTED_PROGRAM
from plimsoll.prediction.predict import predict
from tests.commands import run_plimsoll
from tests.simulated import PROGRAMS

pytest.importorskip("torch")

PROCESSES = PROGRAMS / "prediction" / "processes.py"
WORKERS = PROGRAMS / "prediction" / "card_workers.py"
ONE_PROCESS = "import torch.distributed as dist\ndist.init_process_group('nccl')\n"


def predict_command(*options: str, script: Path = PROCESSES) -> subprocess.CompletedProcess[str]:
    return run_plimsoll("predict", script, *options)


@pytest.mark.long
def test_spawned_processes_are_seen_and_the_largest_is_told_first() -> None:
    found = predict(PROCESSES, ["spawn"], gpu="T4")
    taken = [use.peak_allocated_bytes for use in found.processes]
    assert sorted(size or 0 for size in taken) == [3 * MiB, 30 * MiB, 31 * MiB]
    assert len({use.process for use in found.processes}) == 3
    assert all(use.device == 0 for use in found.processes)
    assert found.peak_allocated_bytes == 31 * MiB
    assert "processes.py:15 " in found.top_lines[0].line
    assert "\n3 processes used simulated GPUs, and the verdict counts all of them" in str(found)
    (card,) = found.shared_cards
    assert (card.device, card.ranks, card.processes) == (0, [], 3)
    contexts = 3 * found.context_bytes
    assert contexts < card.together_bytes <= card.at_most_bytes
    assert found.device_used_bytes == card.together_bytes
    assert found.headroom_bytes == found.total_bytes - card.together_bytes
    assert found.other_cards == []
    assert found.no_other_cards == "several processes use one card"


@pytest.mark.long
def test_a_table_of_cards_says_whose_figures_they_are() -> None:
    done = predict_command("--gpu", "T4", "--gpu", "L4", "--", "fork")
    assert done.returncode == 0, done.stderr
    answer, table = done.stdout.split("\ncard ")
    assert answer.splitlines()[0].endswith(" fits on T4, L4")
    assert "processes.py started used a simulated GPU: it took " in answer
    assert "\nT4 " in table


@pytest.mark.long
def test_a_forked_process_that_nobody_waits_for_is_seen() -> None:
    done = predict_command("--json", "--", "fork")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["uses_cuda"] is True
    assert found["peak_allocated_bytes"] == 44 * MiB
    (use,) = found["processes"]
    assert use["peak_allocated_bytes"] == 44 * MiB
    assert use["peak_reserved_bytes"] == found["peak_reserved_bytes"]


@pytest.mark.long
def test_what_a_process_has_no_memory_for_does_not_fit() -> None:
    found = predict(PROCESSES, ["fails"], gpu="T4")
    assert not found.fits
    assert "Tried to allocate 20.00 GiB" in (found.out_of_memory or "")
    assert found.peak_allocated_bytes == 20 * GiB + MiB


def test_what_a_killed_process_took_is_known() -> None:
    found = predict(PROCESSES, ["killed"], gpu="T4")
    assert found.fits
    (use,) = found.processes
    assert (use.device, use.peak_allocated_bytes, use.peak_reserved_bytes) == (0, None, None)
    assert use.card_bytes == found.device_used_bytes
    assert found.headroom_bytes == found.total_bytes - found.device_used_bytes
    assert found.peak_reserved_bytes == 20 * MiB  # one segment; tensors fill 4 MiB of it
    assert found.peak_allocated_range_bytes == (0, 20 * MiB)
    assert [one.what for one in found.assumptions] == [ENDED_BY_SIGNAL]
    assert "ended by a signal; it had up to " in str(found)


@pytest.mark.long
@pytest.mark.parametrize("how", ["KILL", "TERM"])
def test_a_worker_that_a_signal_ends_leaves_no_room(how: str) -> None:
    """The worker's and the program's memory together exceed the card."""
    found = predict(WORKERS, [how, "9", "9"], gpu="T4")
    assert found.fits is False
    (card,) = found.shared_cards
    assert card.together_bytes > 18 * GiB
    assert found.headroom_bytes == found.total_bytes - card.together_bytes < 0
    assert f"together they take {format_size(card.together_bytes)}, more than the card has" in str(
        found
    )


@pytest.mark.long
def test_processes_one_after_the_other_have_the_card_in_turn() -> None:
    found = predict(WORKERS, ["in_turn", "9", "9"], gpu="T4")
    assert found.fits
    assert found.shared_cards[0].at_most_bytes < 10 * GiB


@pytest.mark.long
def test_peaks_that_may_come_together_make_the_verdict_unknown() -> None:
    options = ("--gpu", "T4", "--json", "--", "by_turns", "9", "9")
    done = predict_command(*options, script=WORKERS)
    assert done.returncode == 3, done.stderr
    found = json.loads(done.stdout)
    assert found["fits"] is None
    assert "if their peaks coincide" in found["why_unknown"]
    (card,) = found["shared_cards"]
    assert card["together_bytes"] < 11 * GiB
    assert card["at_most_bytes"] > 18 * GiB


@pytest.mark.long
def test_processes_that_see_other_cards_share_none() -> None:
    found = predict(WORKERS, ["apart", "9", "9"], gpu="T4")
    assert found.fits
    assert found.shared_cards == []


@pytest.mark.long
def test_a_process_finds_no_room_that_another_one_has() -> None:
    found = predict(WORKERS, ["asks", "9", "0"], gpu="T4")
    assert found.fits
    assert found.processes[0].process != found.processes[1].process


@pytest.mark.long
def test_a_limit_of_the_programs_own_counts(tmp_path: Path) -> None:
    script = tmp_path / "limited.py"
    script.write_text(
        "import sys, torch\n"
        "torch.cuda.set_per_process_memory_fraction(0.5)\n"
        "torch.zeros(int(sys.argv[1]) << 30, dtype=torch.uint8, device='cuda')\n"
    )
    small, large = (predict(script, [size], gpu="T4") for size in "58")
    limit = small.total_bytes // 2
    assert (small.fits, large.fits) == (True, False)
    assert small.limit_bytes == large.limit_bytes == limit
    assert small.headroom_bytes == limit - 5 * GiB
    assert large.headroom_bytes == limit - 8 * GiB < 0
    assert "enough free memory for the peak" not in str(large)
    fitting = {card.gpu for card in small.other_cards if card.fits}
    assert all((gpu_profile(name).total_bytes // 2 >= 5 * GiB) for name in fitting)
    beyond = {card.gpu for card in large.other_cards if card.fits}
    assert beyond == {name for name in fitting if gpu_profile(name).total_bytes // 2 >= 8 * GiB}
    assert "V100-32GB" in beyond


def test_a_limit_of_the_programs_own_is_no_doubt_about_the_context(tmp_path: Path) -> None:
    """Cards of 16 GiB are limited to 4 GiB, so the first 2 GiB go back to the driver."""
    script = tmp_path / "limited.py"
    script.write_text(
        "import torch\n"
        "torch.cuda.set_per_process_memory_fraction(0.25)\n"
        "for gib in (2, 3):\n"
        "    held = torch.zeros(gib << 30, dtype=torch.uint8, device='cuda')\n"
        "    del held\n"
    )
    cards = [card for card in predict(script, gpu="H100").other_cards if card.fits]
    assert any(card.headroom_bytes < 0 for card in cards)
    assert not any(card.may_not_fit for card in cards)


@pytest.mark.parametrize(
    "read",
    [
        "torch.cuda.get_device_properties(0).total_memory",
        "torch.cuda.mem_get_info()[1]",
        "sum(torch.accelerator.get_memory_info())",
    ],
)
def test_a_program_that_reads_the_cards_size_is_not_judged_for_others(
    tmp_path: Path, read: str
) -> None:
    script = tmp_path / "sized.py"
    script.write_text(
        f"import torch\nsize = {read} // 4\ntorch.zeros(size, dtype=torch.uint8, device='cuda')\n"
    )
    found = predict(script, gpu="T4")
    assert found.fits
    assert found.other_cards == []
    assert f"reads how much memory its card has ({script}:2 <module>)" in (
        found.no_other_cards or ""
    )


def test_a_program_that_reads_other_properties_is(tmp_path: Path) -> None:
    script = tmp_path / "named.py"
    script.write_text(
        "import torch\nprint(torch.cuda.get_device_properties(0), torch.cuda.get_device_name())\n"
        "torch.zeros(5, device='cuda')\n"
    )
    found = predict(script, gpu="T4")
    assert found.no_other_cards is None
    assert found.other_cards


def test_a_program_that_tries_until_it_fits_is_not_judged_for_others(tmp_path: Path) -> None:
    script = tmp_path / "tries.py"
    script.write_text(
        "import torch\nsize = 64 << 30\nwhile True:\n    try:\n"
        "        torch.zeros(size, dtype=torch.uint8, device='cuda')\n        break\n"
        "    except torch.OutOfMemoryError:\n        size //= 2\n"
    )
    found = predict(script, gpu="T4")
    assert found.fits
    assert found.other_cards == []
    assert found.no_other_cards == "requests failed on this card, and the program went on"


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
    assert first.startswith(f"{script} itself never touches CUDA. plimsoll does not see the")
    assert programs[0] == f"  {sys.executable} -I -c print(1)"[:82]
    assert "needs no GPU memory" not in str(found)
