"""Tests reading figures from NVML, and the messages if NVML or its Python package is missing."""

from __future__ import annotations

import pytest

from plimsoll.base.telemetry.nvml import GpuReading, Nvml, plain_uuid
from tests.unit.fake_nvml import FakeNvml, Gpu

GIB = 1 << 30


def test_all_gpus_are_read() -> None:
    nvml = Nvml(FakeNvml(Gpu("GPU-AA", used=5, busy=37, compute={7: 4}), Gpu("GPU-bb")))
    first, second = nvml.read().gpus
    assert first == GpuReading(0, "aa", "NVIDIA H100 80GB HBM3", 80 * GIB, 5, 0.37, {7: 4})
    assert (second.index, second.uuid, second.processes) == (1, "bb", {})


def test_it_is_opened_once() -> None:
    library = FakeNvml(Gpu("GPU-a"))
    nvml = Nvml(library)
    nvml.read()
    nvml.read()
    nvml.charge("a", 1)
    assert library.opened == 1


def test_no_driver_is_said_in_a_line() -> None:
    reading = Nvml(FakeNvml(fails="NVML Shared Library Not Found")).read()
    assert reading.gpus == ()
    assert reading.unavailable == "NVML is not available: NVML Shared Library Not Found"


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    unavailable = Nvml().read().unavailable
    assert unavailable is not None
    assert "pip install nvidia-ml-py" in unavailable


@pytest.mark.parametrize(
    ("fails", "field"),
    [
        ("nvmlDeviceGetMemoryInfo", "used_bytes"),
        ("nvmlDeviceGetMemoryInfo", "total_bytes"),
        ("nvmlDeviceGetUtilizationRates", "utilization"),
    ],
)
def test_what_a_gpu_does_not_say_is_unknown(fails: str, field: str) -> None:
    (gpu,) = Nvml(FakeNvml(Gpu("GPU-a", fails={fails}))).read().gpus
    assert getattr(gpu, field) is None


def test_processes_of_one_kind_serve_where_the_other_fails() -> None:
    compute = "nvmlDeviceGetComputeRunningProcesses"
    graphics = "nvmlDeviceGetGraphicsRunningProcesses"
    gpu = Gpu("GPU-a", compute={1: 5}, graphics={1: 5, 2: None})
    nvml = Nvml(FakeNvml(gpu))
    assert nvml.read().gpus[0].processes == {1: 5, 2: None}
    gpu.fails = {compute}
    assert nvml.read().gpus[0].processes == {1: 5, 2: None}
    gpu.fails = {compute, graphics}
    assert nvml.read().gpus[0].processes is None


def test_a_divided_gpu_is_read_by_its_parts() -> None:
    parts = [Gpu("MIG-x", total=10, compute={3: 2}), None, Gpu("MIG-y", total=20)]
    nvml = Nvml(FakeNvml(Gpu("GPU-a", parts=parts)))
    assert [(gpu.index, gpu.uuid, gpu.total_bytes) for gpu in nvml.read().gpus] == [
        (0, "x", 10),
        (0, "y", 20),
    ]
    assert nvml.charge("x", 3) == 2


def test_the_charge_of_a_process() -> None:
    nvml = Nvml(FakeNvml(Gpu("GPU-a"), Gpu("GPU-b", compute={9: 77, 10: None})))
    assert nvml.charge("b", 9) == 77
    assert nvml.charge("b", 10) is None
    assert nvml.charge("b", 11) is None
    assert nvml.charge("a", 9) is None
    assert nvml.charge("none", 9) is None
    assert Nvml(FakeNvml(fails="no driver")).charge("b", 9) is None


def test_uuids_of_nvml_and_cuda_are_one() -> None:
    assert plain_uuid("GPU-AB-1") == plain_uuid("ab-1") == plain_uuid("MIG-ab-1")
