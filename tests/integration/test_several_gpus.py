"""Tests a process with several simulated GPUs: each GPU's figures, and whether it fits."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from plimsoll.base.units import GiB, MiB
from plimsoll.engine.gpus.profiles import gpu_profile, gpu_profiles
from plimsoll.explanation.explain import explain
from plimsoll.prediction.parts import GpuUse, PredictionParts
from plimsoll.prediction.predict import predict
from tests.commands import run_plimsoll
from tests.simulated import PROGRAMS

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch")

SEVERAL = PROGRAMS / "several_gpus.py"
T4 = gpu_profile("T4")
HEAD = "import torch\ndef take(size, gpu):\n"
HEAD += "    return torch.empty(size << 20, dtype=torch.uint8, device=f'cuda:{gpu}')\n"


def program(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(HEAD + text)
    return path


def use(gpu: int, mib: int, context_bytes: int = T4.context_with(())) -> GpuUse:
    """Returns the figures of a T4 on which a program holds `mib` MiB and caches nothing."""
    used = context_bytes + mib * MiB
    return GpuUse(gpu, mib * MiB, mib * MiB, used, T4.total_bytes - used)


def test_each_gpu_of_a_process_has_a_row(tmp_path: Path) -> None:
    script = program(tmp_path, "a = take(100, 0)\nb = [take(100, 1) for _ in range(6)]\n")
    found = predict(script, gpu="T4", gpus=3)
    assert found.devices == [use(0, 100), use(1, 600)]
    assert found.peak_reserved_bytes == 600 * MiB
    assert found.headroom_bytes == found.devices[1].headroom_bytes
    lines = str(found).splitlines()
    assert lines[0].endswith(" fits on T4: 13.83 GiB to spare on GPU 1, the least of its 2 GPUs")
    assert lines[1].startswith("Why: the line that holds the most is ")
    assert [line.split() for line in lines[2:6]] == [
        ["GPU", "allocated", "reserved", "on", "the", "card", "to", "spare"],
        ["0", "100.00", "MiB", "100.00", "MiB", "252.00", "MiB", "14.32", "GiB"],
        ["1", "600.00", "MiB", "600.00", "MiB", "752.00", "MiB", "13.83", "GiB"],
        ["GPU", "1:"],
    ]
    assert PredictionParts.from_dict(json.loads(json.dumps(found.to_dict()))).devices == (
        found.devices
    )


def test_a_process_with_one_gpu_has_no_rows(tmp_path: Path) -> None:
    found = predict(program(tmp_path, "a = take(100, 1)\n"), gpu="T4", gpus=2)
    assert found.devices == [use(1, 100)]
    assert "GPU 1" not in str(found)


@pytest.mark.long
@pytest.mark.parametrize("full", [0, 1])
def test_a_program_fits_where_each_of_its_gpus_does(full: int, tmp_path: Path) -> None:
    text = f"a = take(100, {1 - full})\nb = [take(1024, {full}) for _ in range(15)]\n"
    found = predict(program(tmp_path, text), gpu="T4", gpus=2)
    assert found.fits is False
    assert found.devices[1 - full] == use(1 - full, 100)
    assert found.devices[full] == use(full, 15 << 10)
    assert found.headroom_bytes == T4.total_bytes - T4.context_with(()) - 15 * GiB < 0
    assert f" too little on GPU {full}, the worst of its 2 GPUs" in str(found).splitlines()[0]


def test_a_limit_of_the_programs_own_may_make_the_other_gpu_the_tightest(tmp_path: Path) -> None:
    limit = "torch.cuda.set_per_process_memory_fraction(0.25, 0)\n"
    text = limit + "a = take(3072, 0)\nb = take(5120, 1)\n"
    found = predict(program(tmp_path, text), gpu="T4", gpus=2)
    assert found.peak_reserved_bytes == 3 * GiB
    assert found.headroom_bytes == int(T4.total_bytes * 0.25) - 3 * GiB
    assert found.devices[1] == use(1, 5 << 10)


def test_another_card_has_to_hold_what_any_gpu_takes(tmp_path: Path) -> None:
    """Checks that GPU 1 alone decides which other cards fit.

    GPU 0 reserves more than GPU 1, but most of GPU 0's memory is a cache that PyTorch could free.
    """
    text = "for size in range(1, 11):\n    take(512 * size, 0)\nb = take(20480, 1)\n"
    found = predict(program(tmp_path, text), gpu="H100", gpus=2)
    assert found.devices[0].peak_reserved_bytes == 55 * 512 * MiB
    assert {card.gpu for card in found.other_cards if card.fits} == {
        card.name
        for card in gpu_profiles()
        if card.total_bytes - card.context_with(()) >= 20 * GiB
        and card.compute_capability >= (8, 0)
    }


@pytest.mark.long
def test_what_is_missing_counts_all_shared_memory(tmp_path: Path) -> None:
    script = program(tmp_path, "a = [take(1024, 0) for _ in range(20)]\n")
    found = predict(script, gpu="T4", policy="spill", allocator="elastic", shared="2GiB")
    assert found.fits is False
    assert found.headroom_bytes == T4.total_bytes + 2 * GiB - T4.context_with(()) - 20 * GiB
    assert found.devices[0].headroom_bytes == found.headroom_bytes


def counters(output: str) -> list[list[int]]:
    """Returns the counters that the program printed, one list for each GPU."""
    found: list[list[int]] = json.loads(next(x for x in output.splitlines() if x.startswith("[[")))
    return found


def peaks(uses: list[GpuUse]) -> list[list[int | None]]:
    assert [use.device for use in uses] == [0, 1]
    return [[use.peak_allocated_bytes, use.peak_reserved_bytes] for use in uses]


PROGRAM_NAMES = ["second_gpu", "data_parallel", "split_model"]


@pytest.mark.long
@pytest.mark.parametrize("gib", [16, 18])
def test_gpus_spill_into_the_same_memory_of_the_host(gib: int, tmp_path: Path) -> None:
    """The GPUs share 6 GiB of host memory. They can hold 16 GiB each, but not 18 GiB each."""
    text = f"a = [take(1024, gpu) for gpu in (0, 1) for _ in range({gib})]\n"
    options = {"policy": "spill", "allocator": "elastic", "shared": "6GiB"}
    found = predict(program(tmp_path, text), gpu="T4", gpus=2, **options)  # type: ignore[arg-type]
    missing = T4.context_with(()) + gib * GiB - T4.total_bytes
    assert found.headroom_bytes == pytest.approx(6 * GiB - 2 * missing, abs=4 * MiB)
    assert found.fits is (gib == 16)


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAM_NAMES)
def test_rows_of_a_run_and_of_its_recording_are_pytorchs_own_counters(
    name: str, tmp_path: Path
) -> None:
    file, recording = tmp_path / "account.json", tmp_path / "run.plim"
    options = ("--simulate", "T4", "--gpus", "2", "--json", file, "--record", recording)
    done = run_plimsoll("run", *options, SEVERAL, name)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["device"] for row in rows] == [0, 1]
    accounted = [[row["peak_allocated_bytes"], row["peak_reserved_bytes"]] for row in rows]
    assert accounted == counters(done.stdout)
    assert peaks(explain(recording, advice=False).devices) == counters(done.stdout)


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAM_NAMES)
def test_rows_of_a_prediction_are_pytorchs_own_counters(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    found = predict(SEVERAL, [name], gpu="T4", gpus=2)
    assert peaks(found.devices) == counters(capfd.readouterr().err)


@pytest.mark.long
def test_data_parallel_takes_more_of_the_first_gpu() -> None:
    first, second = predict(SEVERAL, ["data_parallel"], gpu="T4", gpus=2).devices
    assert (first.peak_allocated_bytes or 0) > (second.peak_allocated_bytes or 0) > 0


def test_the_account_has_a_line_for_each_gpu() -> None:
    done = run_plimsoll("run", "--simulate", "T4", "--gpus", "2", SEVERAL, "second_gpu")
    starts = [line.partition(", in use")[0] for line in done.stderr.splitlines()]
    assert starts == [
        "plimsoll: GPU 0, the native allocator: peak allocated 10.00 MiB, reserved 10.00 MiB",
        "plimsoll: GPU 1, the native allocator: peak allocated 120.00 MiB, reserved 120.00 MiB",
    ]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records a program on three GPUs twice. In the second run, GPU 2 runs out of memory."""
    folder = tmp_path_factory.mktemp("recorded")
    text = (
        "a = take(100, 0)\nb = take(600, 1)\nc = take(300, 2)\n"
        "if __import__('sys').argv[1:]:\n    take(20480, 2)\n"
    )
    script = program(folder, text)
    for name, argument in (("fits", []), ("fails", ["more"])):
        options = ("--simulate", "T4", "--gpus", "3", "--record", folder / f"{name}.plim")
        run_plimsoll("run", *options, script, *argument)
    return folder


@pytest.mark.long
def test_the_fullest_device_is_explained_below_a_row_for_each(recorded: Path) -> None:
    found = explain(recorded / "fits.plim", advice=False)
    # A recording does not say which libraries its process loaded. So `explain` assumes that the
    # CUDA context is as large as in a training step.
    taken = enumerate((100, 600, 300))
    assert found.devices == [use(gpu, mib, T4.context_bytes) for gpu, mib in taken]
    assert found.device == 1
    lines = str(found).splitlines()
    begin = lines.index("GPU 1 of 3 is explained here; --device 0 explains another one")
    assert [line.split()[0] for line in lines[begin + 1 : begin + 5]] == ["GPU", "0", "1", "2"]
    another = explain(recorded / "fits.plim", device=0, advice=False)
    assert (another.device, another.devices) == (0, found.devices)
    assert "GPU 0 of 3 is explained here; --device 1 explains another one" in str(another)


def test_a_device_that_ran_out_of_memory_is_explained_first(recorded: Path) -> None:
    found = explain(recorded / "fails.plim", advice=False)
    assert (found.device, len(found.out_of_memory)) == (2, 1)
    another = explain(recorded / "fails.plim", device=1, advice=False)
    assert another.out_of_memory == []
    assert "GPU 2 ran out of memory; --device 2 says why" in another.notes


def test_a_limit_holds_for_each_device(recorded: Path) -> None:
    within = explain(recorded / "fits.plim", limit="700MiB", advice=False)
    assert within.fits_limit is True
    assert [row.headroom_bytes for row in within.devices] == [600 * MiB, 100 * MiB, 400 * MiB]
    beyond = explain(recorded / "fits.plim", limit="400MiB", device=2, advice=False)
    assert beyond.fits_limit is True
    assert beyond.devices[1] == GpuUse(1, 600 * MiB, None, None, None)
    assert "GPU 1 does not fit under the given limit; --device 1 says why" in beyond.notes
    assert explain(recorded / "fits.plim", limit="400MiB", advice=False).device == 1
