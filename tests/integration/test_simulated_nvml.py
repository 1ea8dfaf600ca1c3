"""Tests that simulated cards answer NVML calls of programs that open NVML by `ctypes`."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from plimsoll.base.units import GiB, MiB
from plimsoll.prediction.predict import predict
from tests.simulated import on_simulated_gpus, output_of

torch = pytest.importorskip("torch")
nvml: Any = pytest.importorskip("pynvml")


def handle_of(device: int) -> Any:
    nvml.nvmlInit()
    return nvml.nvmlDeviceGetHandleByIndex(device)


def used_bytes(device: int) -> int:
    return int(nvml.nvmlDeviceGetMemoryInfo(handle_of(device)).used)


@on_simulated_gpus("--gpus", "2", gpu="H100")
def test_cards_have_the_same_names_as_in_pytorch() -> None:
    nvml.nvmlInit()
    assert nvml.nvmlDeviceGetCount() == 2
    for device in range(2):
        card, known = handle_of(device), torch.cuda.get_device_properties(device)
        assert nvml.nvmlDeviceGetName(card) == known.name == "NVIDIA H100 80GB HBM3"
        assert nvml.nvmlDeviceGetUUID(card) == f"GPU-{known.uuid}"
        assert nvml.nvmlDeviceGetIndex(card) == device
        assert nvml.nvmlDeviceGetCudaComputeCapability(card) == (9, 0)
        assert nvml.nvmlDeviceGetMemoryInfo(card).total == known.total_memory
        place = nvml.nvmlDeviceGetPciInfo(card)
        assert (place.domain, place.bus, place.device) == (0, known.pci_bus_id, 0)
        assert place.busId == f"00000000:{device + 1:02X}:00.0"
    assert nvml.nvmlSystemGetDriverVersion() == "580.00"
    major, minor = torch.version.cuda.split(".")
    assert nvml.nvmlSystemGetCudaDriverVersion() == 1000 * int(major) + 10 * int(minor)


@on_simulated_gpus("--gpus", "2", gpu="H100")
def test_a_card_is_found_by_each_of_its_names() -> None:
    second = handle_of(1)
    by_uuid = nvml.nvmlDeviceGetHandleByUUID(nvml.nvmlDeviceGetUUID(second))
    for found in (by_uuid, nvml.nvmlDeviceGetHandleByPciBusId("0000:02:00.0")):
        assert nvml.nvmlDeviceGetIndex(found) == 1


@on_simulated_gpus("--gpus", "2", gpu="H100")
def test_what_does_not_exist_is_an_error_of_nvml() -> None:
    nvml.nvmlInit()
    with pytest.raises(nvml.NVMLError_InvalidArgument):
        nvml.nvmlDeviceGetHandleByIndex(2)
    for name in ("", "GPU-of-another-machine"):
        with pytest.raises(nvml.NVMLError_NotFound):
            nvml.nvmlDeviceGetHandleByUUID(name)
        with pytest.raises(nvml.NVMLError_NotFound):
            nvml.nvmlDeviceGetHandleByPciBusId(name)
    with pytest.raises(nvml.NVMLError_InvalidArgument):
        nvml.nvmlDeviceGetName(ctypes.c_void_p(5))


@on_simulated_gpus()
def test_a_question_without_an_answer_is_not_supported() -> None:
    with pytest.raises(nvml.NVMLError_NotSupported):
        nvml.nvmlDeviceGetTemperature(handle_of(0), nvml.NVML_TEMPERATURE_GPU)


@pytest.mark.parametrize(("gpu", "linked"), [("H100", True), ("L4", False)])
def test_links_are_those_of_the_cards(gpu: str, linked: bool) -> None:
    output_of(links_are, "--gpus", "2", arguments=[linked], gpu=gpu)


def links_are(expected: bool) -> None:
    kind = nvml.NVML_P2P_CAPS_INDEX_NVLINK
    found = nvml.nvmlDeviceGetP2PStatus(handle_of(0), handle_of(1), kind)
    assert (found == nvml.NVML_P2P_STATUS_OK) is expected


@on_simulated_gpus("--gpus", "2")
def test_memory_is_read_without_a_context() -> None:
    assert used_bytes(0) == used_bytes(1) == 0
    assert nvml.nvmlDeviceGetComputeRunningProcesses(handle_of(0)) == []
    _held = torch.empty(GiB, dtype=torch.uint8, device="cuda")
    free, total = torch.cuda.mem_get_info(0)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle_of(0), version=nvml.nvmlMemory_v2)
    assert (memory.total, memory.free, memory.used) == (total, free, total - free)
    assert memory.used > GiB + 256 * MiB  # includes the context
    (process,) = nvml.nvmlDeviceGetComputeRunningProcesses(handle_of(0))
    assert (process.pid, process.usedGpuMemory) == (os.getpid(), memory.used)
    assert torch.cuda.device_memory_used(0) == memory.used
    assert used_bytes(1) == 0


BEFORE_PYTORCH = """
import sys
import pynvml

pynvml.nvmlInit()
memory = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0))
assert "torch" not in sys.modules
print(memory.total, memory.used)
import torch
print(torch.cuda.is_initialized(), torch.cuda.get_device_properties(0).total_memory)
"""


def test_a_card_is_read_before_pytorch_is_imported() -> None:
    total, used, initialized, again = output_of(BEFORE_PYTORCH, environment={}).split()
    assert (total, used, initialized) == (again, "0", "False")


OF_TWO_PROCESSES = """
import multiprocessing, os, sys
import pynvml

def used_bytes():
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used

def work():
    import torch
    assert used_bytes() > 5 << 30  # what the parent has
    held = torch.zeros(3 << 30, dtype=torch.uint8, device="cuda")
    assert used_bytes() > 8 << 30
    running = pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(0))
    (own,) = (each.usedGpuMemory for each in running if each.pid == os.getpid())
    assert 3 << 30 < own < 4 << 30

if __name__ == "__main__":
    import torch
    held = torch.zeros(5 << 30, dtype=torch.uint8, device="cuda")
    worker = multiprocessing.get_context("spawn").Process(target=work)
    worker.start()
    worker.join()
    sys.exit(worker.exitcode)
"""


def test_what_other_processes_have_of_a_card_is_used(tmp_path: Path) -> None:
    script = tmp_path / "two.py"
    script.write_text(OF_TWO_PROCESSES)
    found = predict(script, gpu="T4")
    assert found.fits
    (card,) = found.shared_cards
    assert card.processes == 2
    assert 8 * GiB < card.together_bytes < 9 * GiB


ASKS_ALONE = """
import pynvml, torch

pynvml.nvmlInit()
memory = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0))
held = torch.zeros(memory.total // 4, dtype=torch.uint8, device="cuda")
"""


def test_a_program_that_sizes_itself_by_nvml_is_not_judged_for_others(tmp_path: Path) -> None:
    script = tmp_path / "sized.py"
    script.write_text(ASKS_ALONE)
    found = predict(script, gpu="T4")
    assert found.other_cards == []
    assert "reads how much memory its card has" in (found.no_other_cards or "")


@on_simulated_gpus()
def test_other_libraries_open_as_they_are() -> None:
    assert ctypes.CDLL(None).getpid() == os.getpid()
    assert ctypes.CDLL("libc.so.6").getpid() == os.getpid()
    with pytest.raises(OSError, match=r"libnvidia-nothing\.so\.1"):
        ctypes.CDLL("libnvidia-nothing.so.1")


@on_simulated_gpus("--gpus", "2", gpu="H100")
@pytest.mark.parametrize("shell", [False, True])
def test_nvidia_smi_says_the_simulated_cards(shell: bool) -> None:
    command: Any = ["nvidia-smi", "--query-gpu=index,name,memory.total", "--format=csv,noheader"]
    command = " ".join(command) if shell else command
    done = subprocess.run(command, capture_output=True, text=True, check=True, shell=shell)
    total = torch.cuda.get_device_properties(0).total_memory // MiB
    assert done.stdout.splitlines() == [f"{i}, NVIDIA H100 80GB HBM3, {total} MiB" for i in (0, 1)]
    torch.empty(GiB, dtype=torch.uint8, device="cuda:1")
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,nounits"]
    used = subprocess.check_output(query, text=True).splitlines()
    assert used[0] == "memory.used"
    assert int(used[2]) == used_bytes(1) // MiB > 1024


@on_simulated_gpus(gpu="H100")
def test_what_nvidia_smi_is_not_simulated_for_fails_and_other_programs_run() -> None:
    done = subprocess.run(["nvidia-smi", "--query-gpu=fan.speed", "--format=csv"], check=False)
    assert done.returncode == 1
    assert subprocess.run(["nvidia-smi"], check=False).returncode == 1
    assert subprocess.check_output(["echo", "nvidia-smi"]) == b"nvidia-smi\n"
