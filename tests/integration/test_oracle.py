"""Runs PyTorch's allocator and `native`, plimsoll's imitation of it, on the same requests.

A C++ program in tests/oracle compares the results. The tests need a CUDA build of PyTorch: the
installed one, or one that `make test-oracle` unpacked.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.oracle.builds import build, cuda_headers
from tests.oracle.wheels import link_installed, unpacked

if TYPE_CHECKING:
    from pathlib import Path

# Programs that once gave different results; see docs/versions.md.
ONCE_DIFFERENT = """
gpu 1001 ; limit 500; malloc 512 0
gpu 1073741824 ; limit 1000; malloc 951100834 3; malloc 222807000 0
gpu 1073741824 max_split_size_mb:20; malloc 512 0
gpu 1073741824 roundup_power2_divisions:[1:2,16:8,>:4]; malloc 20971521 0
gpu 157286400 ; begin 0 0; begin 2 0; malloc 10486272 0
gpu 268435456 ; malloc 189086699 0; malloc 189086699 0
gpu 268435456 expandable_segments:True; begin 2 0; malloc 233661658 0; use_on_oom 2 1; end 2; malloc 2683635 0
gpu 8589934592 expandable_segments:True; malloc 6569803067 1; malloc 6569803067 0
gpu 8589934592 max_split_size_mb:32,large_segment_size_mb:12; malloc 50384440 0; free 0; malloc 33554432 0
gpu 8589934592 max_non_split_rounding_mb:41,max_split_size_mb:50; later max_split_size_mb:50; settings 0; malloc 80740352 0; free 0; malloc 54525952 0
gpu 8589934592 throw_on_cudamalloc_oom:True; malloc 3418176606 2; malloc 3418176606 0; malloc 3418176606 1
gpu 157286400 ; later throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.3; limit 685; malloc 2272114 0; malloc 56075283 0; settings 0; free 0; malloc 31367355 3
gpu 1001 per_process_memory_fraction:0.5; malloc 512 0
gpu 268435456 pinned_reserve_segment_size_mb:16; malloc 600 0
gpu 268435456 pinned_free_catch_all:True; malloc 600 0
gpu 268435456 pinned_max_round_threshold_mb:16; malloc 600 0
gpu 268435456 pinned_max_cached_size_mb:16; malloc 600 0
""".strip().splitlines()  # noqa: E501

SIZES = st.sampled_from([1, 512, 513, 2**20, 2**20 + 1, 3 << 20, 10 << 20, 20 << 20, 90 << 20])
STREAMS = st.integers(0, 3)
POOLS = st.integers(0, 2)
WHICH = st.integers(0, 100)
OPERATIONS = st.one_of(
    st.tuples(st.just("malloc"), SIZES, STREAMS),
    st.tuples(st.just("malloc"), SIZES, STREAMS),
    st.tuples(st.just("free"), WHICH),
    st.tuples(st.just("record"), WHICH, STREAMS),
    st.tuples(st.sampled_from(["hold", "finish"]), STREAMS),
    st.tuples(st.sampled_from(["begin", "capture"]), POOLS, st.just(0)),
    st.tuples(st.sampled_from(["use", "end", "release"]), POOLS),
    st.tuples(st.sampled_from(["empty", "snapshot", "heal"])),
    st.tuples(st.just("limit"), st.integers(0, 1000)),
    st.tuples(st.just("fault"), st.integers(0, 1), st.integers(0, 3), st.just(2)),
)


@pytest.fixture(scope="module")
def oracle() -> Path:
    version = link_installed() or next(reversed(unpacked()), None)
    if version is None or cuda_headers() is None:
        pytest.skip("no CUDA build of PyTorch is here; `make test-oracle` unpacks one")
    return build(version)


def differences(oracle: Path, programs: list[str]) -> str:
    text = "".join(f"{program}\n" for program in programs)
    done = subprocess.run([oracle, "run"], input=text, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return "\n".join(line for line in done.stdout.splitlines() if line not in ("same", ""))


def test_native_is_pytorchs_own_allocator_step_by_step(oracle: Path) -> None:
    done = subprocess.run(
        [oracle, "random", "1", "1000", "200"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_native_is_what_it_once_was_not(oracle: Path) -> None:
    assert differences(oracle, ONCE_DIFFERENT) == ""


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(operations=st.lists(OPERATIONS, max_size=60), expandable=st.booleans())
def test_native_is_pytorchs_own_allocator_for_any_program(
    oracle: Path, operations: list[tuple[object, ...]], expandable: bool
) -> None:
    parts = [f"gpu {256 << 20} " + "expandable_segments:True" * expandable]
    parts += [
        " ".join(map(str, ("empty", 0) if operation == ("empty",) else operation))
        for operation in operations
    ]
    assert differences(oracle, ["; ".join(parts)]) == ""
