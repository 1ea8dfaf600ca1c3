"""Predictions: against what the same scripts took on an H100, and at the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from plimsoll.predict import CATEGORIES, Prediction, fit, predict
from plimsoll.predict.predict import AllocatorName
from plimsoll.trace import read_recording
from plimsoll.trace.events import Action
from plimsoll.units import GiB, MiB
from tests.recordings import LARGE, ROOT

torch = pytest.importorskip("torch")

WORKLOADS = LARGE.parent / "workloads"
NAMES = sorted(path.stem for path in WORKLOADS.glob("*.py"))
TRAIN_GPT = ROOT / "examples" / "train_gpt.py"


def command(*arguments: str | Path, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "plimsoll", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )


def script(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def predictions() -> dict[str, Prediction]:
    pytest.importorskip("transformers")
    return {name: predict(WORKLOADS / f"{name}.py", gpu="H100") for name in NAMES}


@pytest.mark.skipif(not NAMES, reason="the recorded workloads are not beside this checkout")
class TestRecordedWorkloads:
    @pytest.mark.parametrize("name", NAMES)
    def test_peaks_are_within_two_percent_of_the_recorded_ones(
        self, name: str, predictions: dict[str, Prediction]
    ) -> None:
        truth = json.loads((LARGE / f"{name}.default.json").read_text())
        found = predictions[name]
        assert found.peak_allocated_bytes == pytest.approx(truth["max_memory_allocated"], rel=0.02)
        assert found.peak_reserved_bytes == pytest.approx(truth["max_memory_reserved"], rel=0.02)

    @pytest.mark.parametrize("name", NAMES)
    def test_categories_add_up_to_the_peak(
        self, name: str, predictions: dict[str, Prediction]
    ) -> None:
        found = predictions[name]
        assert set(found.by_category) == set(CATEGORIES)
        assert sum(found.by_category.values()) == found.peak_allocated_bytes

    def test_gpt2_asks_for_the_very_sizes_that_were_recorded(self, tmp_path: Path) -> None:
        copy = script(tmp_path, (WORKLOADS / "gpt2_adamw.py").read_text().replace(
            '    main()', '''    torch.cuda.memory._record_memory_history()
    main()
    torch.cuda.memory._dump_snapshot("gpt2.pickle")'''))  # fmt: skip
        assert command("run", "--simulate", "H100", copy, folder=tmp_path).returncode == 0
        mine = _requested(tmp_path / "gpt2.pickle")
        recorded = _requested(LARGE / "gpt2_adamw.default.pickle.gz")
        version = tuple(int(part) for part in torch.__version__.split(".")[:2])
        if version >= (2, 12):  # cublasLt's own workspace is gone
            recorded = [size for size in recorded if size != MiB]
        assert mine == recorded

    def test_a_smaller_card_is_reported_as_too_small_with_what_is_missing(self) -> None:
        found = predict(WORKLOADS / "gpt2_adamw.py", gpu="RTX 3070")
        assert not found.fits
        assert "CUDA out of memory. Tried to allocate" in (found.out_of_memory or "")
        assert found.peak_reserved_bytes > found.total_bytes
        assert found.headroom_bytes < 0


def _requested(path: Path) -> list[int]:
    (device,) = read_recording(path).devices
    return [
        int(size) for batch in device.batches() for size in batch.size[batch.action == Action.ALLOC]
    ]


class TestCommand:
    def test_json_has_the_stated_keys(self, tmp_path: Path) -> None:
        path = script(tmp_path, "import torch; x = torch.zeros(1 << 20, device='cuda')")
        done = command("predict", path, "--json", "--gpu", "T4")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert set(found) >= {
            "gpu", "peak_allocated_bytes", "peak_reserved_bytes", "device_used_bytes", "fits",
            "by_category", "top_lines", "assumptions", "events", "seconds",
        }  # fmt: skip
        assert found["gpu"] == "T4"
        assert found["peak_allocated_bytes"] == 4 * MiB
        assert found["peak_reserved_bytes"] == 20 * MiB
        assert found["by_category"]["inputs"] + found["by_category"]["activations"] == 4 * MiB
        assert found["top_lines"][0]["line"].startswith(str(path))

    def test_several_cards_make_a_table(self) -> None:
        done = command("predict", TRAIN_GPT, "--gpu", "T4", "--gpu", "H100", "--", "--depth", "2")
        assert done.returncode == 0, done.stderr
        assert [line.split()[0] for line in done.stdout.splitlines()] == ["card", "T4", "H100"]

    def test_arguments_reach_the_script_and_its_output_goes_to_stderr(self, tmp_path: Path) -> None:
        path = script(tmp_path, "import sys, torch\nprint('got', sys.argv[1:], __name__)")
        done = command("predict", path, "--", "--lr", "0.1")
        assert "got ['--lr', '0.1'] __main__" in done.stderr
        assert "got" not in done.stdout

    def test_a_script_that_never_touches_cuda_is_said_to(self, tmp_path: Path) -> None:
        done = command("predict", script(tmp_path, "import torch; print(torch.ones(2).sum())"))
        assert done.returncode == 0
        assert "never touches CUDA" in done.stdout

    def test_a_script_that_raises_shows_its_own_traceback(self, tmp_path: Path) -> None:
        path = script(tmp_path, "import torch\ndef inner():\n    raise ValueError('mine')\ninner()")
        done = command("predict", path)
        assert done.returncode == 1
        assert "ValueError: mine" in done.stderr
        assert "in inner" in done.stderr
        assert "plimsoll/" not in done.stderr.split("Traceback")[1].split("ValueError")[0]

    @pytest.mark.parametrize(
        "ending",
        ["sys.exit(1)", "raise RuntimeError('training failed') from error", "raise"],
    )
    def test_an_out_of_memory_error_is_the_answer_however_the_script_ends(
        self, ending: str, tmp_path: Path
    ) -> None:
        text = f"""
import sys, torch
try:
    torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    {ending}
"""
        found = predict(script(tmp_path, text))
        assert not found.fits
        assert found.peak_reserved_bytes == 1 << 40

    def test_a_script_that_exits_with_a_status_failed(self, tmp_path: Path) -> None:
        done = command("predict", script(tmp_path, "import sys; sys.exit(3)"))
        assert done.returncode == 1
        assert "ended with status 3" in done.stderr

    def test_an_optimistic_fork_does_not_answer_for_its_parent(self, tmp_path: Path) -> None:
        path = script(tmp_path, """
import os, torch
x = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
child = os.fork()
if child == 0:
    raise SystemExit(0)
os.waitpid(child, 0)
y = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
""")  # fmt: skip
        assert predict(path).peak_allocated_bytes == (1 << 30) + (1 << 20)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["predict", "no_such.py"], "there is no script 'no_such.py'"),
            (["predict", str(TRAIN_GPT), "--gpu", "H1000"], "did you mean"),
            (["predict", str(TRAIN_GPT), "--driver", "vista"], "unknown driver 'vista'"),
            (["predict", str(TRAIN_GPT), "--conf", "nonsense:1"], "nonsense"),
            (["predict", str(TRAIN_GPT), "--gpus", "0"], "1 to 64 GPUs"),
            (["predict", str(TRAIN_GPT), "--policy", "sometimes"], "unknown policy 'sometimes'"),
            (["predict", str(TRAIN_GPT), "--shared", "1GiB"], "choose the policy spill"),
            (["predict", str(TRAIN_GPT), "--dedicated", "-1GiB"], "not a size: '-1GiB'"),
            (["predict", str(TRAIN_GPT), "--dedicated", "81GiB"], "more than H100 has"),
            (
                ["predict", str(TRAIN_GPT), "--policy", "strict", "--driver", "wddm"],
                "spills by itself",
            ),
            (["run", str(TRAIN_GPT)], "--simulate"),
            (["fit", "no_such.py"], "there is no script"),
        ],
    )
    def test_bad_input_gets_one_line_and_status_2(self, arguments: list[str], message: str) -> None:
        done = command(*arguments)
        assert done.returncode == 2
        assert message in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1

    def test_nothing_is_left_behind(self, tmp_path: Path) -> None:
        before = set(os.environ)
        path = script(tmp_path, "import torch; torch.zeros(1, device='cuda')")
        assert command("predict", path, folder=tmp_path).returncode == 0
        assert [entry.name for entry in tmp_path.iterdir()] == ["script.py"]
        assert set(os.environ) == before

    def test_run_passes_the_exit_status_and_the_output_on(self, tmp_path: Path) -> None:
        path = script(
            tmp_path, "import sys, torch\nprint(torch.cuda.get_device_name())\nsys.exit(3)"
        )
        done = command("run", "--simulate", "RTX 4090", path)
        assert done.returncode == 3
        assert done.stdout == "NVIDIA GeForce RTX 4090\n"


def test_windows_goes_on_in_shared_memory_and_says_how_much(tmp_path: Path) -> None:
    path = script(
        tmp_path, "import torch; x = torch.empty(6 << 30, dtype=torch.uint8, device='cuda')"
    )
    assert not predict(path, gpu="T4:4GiB").fits
    found = predict(path, gpu="T4:4GiB", driver="wddm", host_memory="64GiB")
    assert found.fits
    assert 2 * GiB < found.shared_used_bytes < 3 * GiB


SPILLING = """
import torch
kept = torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
def forward():
    return torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
for _ in range(3):
    spilled = forward()
    del spilled
"""


@pytest.mark.parametrize("allocator", ["native", "elastic"])
def test_what_spills_is_told_with_its_lines_and_the_least_that_it_costs(
    allocator: AllocatorName, tmp_path: Path
) -> None:
    path = script(tmp_path, SPILLING)
    found = predict(
        path, gpu="T4", allocator=allocator, policy="spill", dedicated="4GiB", shared="8GiB"
    )
    assert found.fits
    assert found.driver == ("wddm" if allocator == "native" else "linux")
    assert found.shared is not None
    assert found.shared.total_bytes == 8 * GiB
    assert found.shared_used_bytes == found.shared.peak_bytes == GiB
    assert (found.shared.num_spills, found.shared.spilled_bytes) == (3, 3 * GiB)
    assert found.shared.peak_dedicated_bytes == 4 * GiB
    assert found.shared.transfer_seconds == pytest.approx(6 * GiB / 55e9)
    assert [(share.line.split(":")[-1], share.bytes) for share in found.shared_lines] == [
        ("5 forward", GiB)
    ]
    assert sum(found.shared_by_category.values()) == GiB


def test_what_does_not_fit_even_with_shared_memory_is_missing_from_both(tmp_path: Path) -> None:
    options = ("--gpu", "T4", "--policy", "spill", "--dedicated", "4GiB", "--shared", "512MiB")
    done = command("predict", script(tmp_path, SPILLING), *options)
    assert done.returncode == 1
    assert "does not fit on T4 with 512.00 MiB of shared memory: 512.00 MiB too little" in (
        done.stdout
    )


def test_spilling_is_shown(tmp_path: Path) -> None:
    options = ("--gpu", "T4:4GiB", "--allocator", "elastic", "--policy", "spill")
    done = command("predict", script(tmp_path, SPILLING), *options, "--host-memory", "16GiB")
    assert done.returncode == 0, done.stderr
    assert "fits on T4" in done.stdout
    assert "Spilled by the allocator:" in done.stdout
    assert "That costs at least" in done.stdout
    assert "In shared memory, when it held the most:" in done.stdout


def test_fit_finds_the_largest_value_that_fits(tmp_path: Path) -> None:
    path = script(tmp_path, """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int)
size = parser.parse_args().batch_size
x = torch.empty(size << 30, dtype=torch.uint8, device="cuda")
""")  # fmt: skip
    found = fit(path, "--batch-size", gpu="T4")
    assert found.largest == 14
    assert [value for value, fits, _ in found.curve if fits] == [1, 2, 4, 8, 12, 14]


def test_steps_are_seen_and_the_lines_that_hold_the_most_are_named() -> None:
    found = predict(TRAIN_GPT, ["--depth", "2", "--steps", "3"], gpu="H100")
    assert len(found.step_peaks_bytes) == 3
    assert found.step_peaks_bytes[1] == found.step_peaks_bytes[2]
    assert any("train_gpt.py" in line.line for line in found.top_lines)
    assert found.by_category["parameters"] > 0
    assert found.by_category["optimizer_state"] == pytest.approx(
        2 * found.by_category["parameters"], rel=0.01
    )
    cards: dict[str, Any] = {card.gpu: card.fits for card in found.other_gpus}
    assert cards["B200"]
    assert not cards["RTX 3050 Laptop"] or found.device_used_bytes < 4 * GiB
