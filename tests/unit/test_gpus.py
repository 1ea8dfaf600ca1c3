from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import get_args

import pytest

from plimsoll import InputError
from plimsoll.base.units import GiB, KiB, MiB
from plimsoll.engine.gpus.card_files import CONTEXT_PARTS, OF_TRAINING
from plimsoll.engine.gpus.card_names import name_keys
from plimsoll.engine.gpus.profiles import GpuProfile, Kind, _built_in, gpu_profile, gpu_profiles

NOMINAL_GIB = {
    "P100": 16,
    "V100-16GB": 16,
    "V100-32GB": 32,
    "T4": 16,
    "A10": 24,
    "A10G": 24,
    "A16": 16,
    "A30": 24,
    "A40": 48,
    "A100-40GB": 40,
    "A100-80GB": 80,
    "A6000": 48,
    "RTX 6000 Ada": 48,
    "L4": 24,
    "L40": 48,
    "L40S": 48,
    "H100": 80,
    "H100-PCIe": 80,
    "H100-NVL": 94,
    "H200": 141,
    "GH200": 96,
    "B200": 180,
    "RTX 2080 Ti": 11,
    "RTX 3060": 12,
    "RTX 3070": 8,
    "RTX 3080": 10,
    "RTX 3090": 24,
    "RTX 4060 Ti": 16,
    "RTX 4070": 12,
    "RTX 4080": 16,
    "RTX 4090": 24,
    "RTX 5070": 12,
    "RTX 5080": 16,
    "RTX 5090": 32,
    "RTX 3050 Laptop": 4,
    "RTX 3060 Laptop": 6,
    "RTX 3070 Laptop": 8,
    "RTX 4050 Laptop": 6,
    "RTX 4060 Laptop": 8,
    "RTX 4070 Laptop": 8,
    "RTX 4080 Laptop": 12,
    "RTX 4090 Laptop": 16,
    "RTX 5090 Laptop": 24,
}

each_gpu = pytest.mark.parametrize("gpu", gpu_profiles(), ids=lambda gpu: gpu.name)


def test_there_are_at_least_thirty_and_each_has_its_own_name() -> None:
    names = [gpu.name for gpu in gpu_profiles()]
    assert len(names) >= 30
    assert sorted(names) == sorted(NOMINAL_GIB)
    assert len({gpu.full_name for gpu in gpu_profiles()}) == len(names)


@each_gpu
def test_the_driver_reports_a_little_less_than_the_nominal_memory(gpu: GpuProfile) -> None:
    share = gpu.total_bytes / (NOMINAL_GIB[gpu.name] * GiB)
    assert 0.9 < share < 1


@each_gpu
def test_a_profile_is_sane(gpu: GpuProfile) -> None:
    assert 10 <= gpu.multiprocessors <= 200
    assert (6, 0) <= gpu.compute_capability <= (12, 0)
    assert 2 * MiB <= gpu.l2_cache_bytes <= 128 * MiB
    assert gpu.max_threads_per_multiprocessor in (1024, 1536, 2048)
    assert 48 * KiB <= gpu.shared_memory_per_block_optin_bytes
    assert (
        gpu.shared_memory_per_block_optin_bytes
        <= gpu.shared_memory_per_multiprocessor_bytes
        <= 228 * KiB
    )
    assert 100e9 < gpu.memory_bandwidth_bytes_per_s < 10e12
    assert 10e9 < gpu.bus_bytes_per_s < gpu.memory_bandwidth_bytes_per_s
    assert 4e12 < gpu.fp32_flops < 110e12
    assert gpu.fp32_flops <= gpu.tensor_flops < 40 * gpu.fp32_flops
    assert 100 * MiB < gpu.context_bytes < 1 * GiB < gpu.total_bytes
    assert gpu.kind in get_args(Kind)
    assert (gpu.kind == "laptop") == ("Laptop" in gpu.full_name)
    assert (gpu.kind in ("desktop", "laptop")) == ("GeForce" in gpu.full_name)


@each_gpu
def test_a_training_step_loads_the_whole_context(gpu: GpuProfile) -> None:
    assert gpu.context_with(OF_TRAINING[1:]) == gpu.context_bytes
    assert gpu.context_parts.keys() == {"made", *CONTEXT_PARTS}
    assert gpu.context_with(()) > gpu.context_bytes // 2


@pytest.mark.parametrize(
    ("card", "posted_gib"),
    [
        ("T4", 0.01), ("RTX 4060 Laptop", 0.02), ("A10", 0.05), ("RTX 3090", 0.06),
        ("RTX 4090", 0.08), ("L40S", 0.08), ("A100-80GB", 0.12), ("H100", 0.16),
    ],
)  # fmt: skip
def test_what_a_forward_pass_loads_is_as_people_posted(card: str, posted_gib: float) -> None:
    """Compares the figures for loaded kernels and cuBLAS with logs that users of vLLM posted.

    Each `posted_gib` follows the words "non_torch_memory takes" in a log of vLLM 0.6 to 0.9 that
    ran on one card.
    """
    gpu = gpu_profile(card)
    loaded = gpu.context_with(["kernels", "blas"]) - gpu.context_with(())
    assert loaded == pytest.approx(posted_gib * GiB, abs=40 * MiB)


def test_every_name_is_one_cards() -> None:
    owner: dict[str, str] = {}
    for profile, aliases in _built_in():
        for name in (profile.name, profile.full_name, *aliases):
            for key in name_keys(name):
                assert owner.setdefault(key, profile.name) == profile.name


@each_gpu
def test_each_number_says_where_it_comes_from(gpu: GpuProfile) -> None:
    numbers = {field.name for field in fields(gpu)} - {
        *("name", "full_name", "kind", "sources", "measured"),
    }
    assert gpu.sources.keys() == numbers
    assert all(gpu.sources.values())


@each_gpu
def test_a_gpu_is_found_by_both_its_names_in_any_spelling(gpu: GpuProfile) -> None:
    for name in (gpu.name, gpu.full_name):
        for spelling in (
            name,
            name.lower(),
            name.upper(),
            name.replace(" ", ""),
            name.replace(" ", "-"),
            name.replace("-", " "),
            f"  {name} ",
            f"NVIDIA {name}",
        ):
            assert gpu_profile(spelling) is gpu


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("a100", "A100-40GB"),
        ("A100 80 GB", "A100-80GB"),
        ("A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB"),
        ("v100", "V100-16GB"),
        ("H100-SXM", "H100"),
        ("h100 sxm5 80gb", "H100"),
        ("h100 pcie", "H100-PCIe"),
        ("rtx4090", "RTX 4090"),
        ("4090", "RTX 4090"),
        ("GeForce RTX 4090", "RTX 4090"),
        ("4090 laptop", "RTX 4090 Laptop"),
        ("RTX 4060 Mobile", "RTX 4060 Laptop"),
        ("RTX 3080 10GB", "RTX 3080"),
        ("3060 12gb", "RTX 3060"),
        ("RTX 4060 Laptop GPU 8GB", "RTX 4060 Laptop"),
        ("4060Ti", "RTX 4060 Ti"),
        ("rtx a6000", "A6000"),
        ("6000 ada", "RTX 6000 Ada"),
        ("Tesla T4", "T4"),
    ],
)
def test_people_write_the_names_in_many_ways(spelling: str, name: str) -> None:
    assert gpu_profile(spelling).name == name


def test_what_is_measured() -> None:
    h100 = gpu_profile("H100")
    assert h100.total_bytes == 85017493504
    assert h100.full_name == "NVIDIA H100 80GB HBM3"
    assert h100.multiprocessors == 132
    assert h100.compute_capability == (9, 0)
    assert h100.sources["total_bytes"] == "measured"


@pytest.mark.parametrize(
    ("name", "like", "size"),
    [
        ("RTX 4090:20GiB", "RTX 4090", 20 * GiB),
        ("h100: 40 GiB", "H100", 40 * GiB),
        ("A100:80GB", "A100-40GB", 80 * 10**9),
        ("4090 laptop:12884901888", "RTX 4090 Laptop", 12 * GiB),
    ],
)
def test_a_chip_can_be_asked_for_with_other_memory(name: str, like: str, size: int) -> None:
    gpu, usual = gpu_profile(name), gpu_profile(like)
    assert gpu.total_bytes == size
    assert gpu.sources["total_bytes"] == "asked for"
    assert gpu.name.startswith(f"{like}:")
    assert gpu_profile(gpu.name) == gpu
    assert usual.sources["total_bytes"] != "asked for"
    for field in fields(GpuProfile):
        if field.name not in ("name", "total_bytes", "sources"):
            assert getattr(gpu, field.name) == getattr(usual, field.name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "H1000",
            r"^unknown GPU 'H1000'; did you mean H100, H200, H100-NVL\? `plimsoll gpus` lists all$",
        ),
        ("4060", r"^unknown GPU '4060'; did you mean RTX 4060 Ti, RTX 4060 Laptop\? "),
        ("RTX 409", r"^unknown GPU 'RTX 409'; did you mean RTX 4090"),
        ("RTX 4900", r"^unknown GPU 'RTX 4900'; did you mean RTX 4090"),  # transposed digits
        ("5090 Latpop", r"did you mean RTX 5090 Laptop"),
        ("H1000:40GiB", r"^unknown GPU 'H1000'; did you mean H100"),
        ("abacus", r"^unknown GPU 'abacus'; no known name is near; `plimsoll gpus` lists all$"),
        ("", r"^unknown GPU ''; no known name"),
        ("NVIDIA", r"^unknown GPU 'NVIDIA'; no known name"),
        ("RTX", r"^unknown GPU 'RTX'; did you mean RTX "),
        ("H100:", r"not a size: ''"),
        ("H100:big", r"not a size: 'big'"),
        ("H100:0", r"above zero"),
        ("H100:100MiB", r"'H100:100MiB' has no room for the CUDA context of 766.81 MiB"),
    ],
)
def test_what_is_no_gpu_is_refused_with_the_nearest_names(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        gpu_profile(name)


def test_a_profile_cannot_be_changed_and_the_list_is_ones_own() -> None:
    gpu = gpu_profile("T4")
    with pytest.raises(FrozenInstanceError):
        gpu.total_bytes = 1  # type: ignore[misc]
    assert hash(gpu) == hash(gpu_profile("t4"))
    gpu_profiles().clear()
    assert gpu_profiles()
