"""Runs programs with the allocator of PyTorch's wheel, and with plimsoll's rewrite of it."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll.base.errors import InputError
from plimsoll.prediction.options import Options
from plimsoll.prediction.predict import predict
from plimsoll.torch.building import versions
from plimsoll.torch.simulated.setup import Setup
from plimsoll.torch.wheel import own_allocator
from tests.apart import ROOT, in_a_process
from tests.simulated import output_of

pytest.importorskip("torch")

TRAIN_GPT = ROOT / "examples" / "train_gpt.py"
needs_cuda_build = pytest.mark.skipif(
    not versions.is_cuda_build(), reason="no CUDA build of PyTorch is installed"
)
UNEQUAL = {"assumptions", "host_peak_bytes", "host_peak_range_bytes", "seconds", "timeline"}
"""Fields in which two predictions may differ: they change with each run, or name the allocator."""


def uses_everything() -> None:
    """Uses settings, streams, pools, graphs and limits on two GPUs, until their memory is full.

    Prints the errors, the statistics of each GPU, and the snapshot.
    """
    import torch

    def sizes(count: int) -> list[torch.Tensor]:
        return [torch.empty(300_000 * i + 1, device="cuda") for i in range(count)]

    kept: list[Any] = []
    torch.cuda.memory._set_allocator_settings("max_split_size_mb:40")
    for device in range(2):
        with torch.cuda.device(device):
            side = torch.cuda.Stream()
            some = sizes(9 + device)
            with torch.cuda.stream(side):
                used = torch.ones(3 << 20, device="cuda")
            used.record_stream(torch.cuda.current_stream())
            del used
            pool = torch.cuda.MemPool()
            with torch.cuda.use_mem_pool(pool):
                kept += [pool, *sizes(4)]
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=side):
                product = torch.ones(500, 500, device="cuda") @ some[0].expand(500, 500)
                product.record_stream(torch.cuda.default_stream())
                kept += [graph, product.relu()]
                del product
            graph.replay()
            kept += some[::2]
    torch.cuda.empty_cache()
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    torch.cuda.set_per_process_memory_fraction(0.3, 0)
    for device in range(2):
        try:
            kept += [torch.empty(5 << 30, device=f"cuda:{device}") for _ in range(9)]
        except torch.OutOfMemoryError as error:
            print(error)
        print(torch.cuda.memory_stats(device))
    print(torch.cuda.memory_snapshot())


@needs_cuda_build
def test_programs_see_the_same_as_by_plimsolls_rules() -> None:
    native, wheel = (
        output_of(uses_everything, "--gpus", "2", "--allocator", name)
        for name in ("native", "wheel")
    )
    assert wheel == native
    assert native.count("out of memory") == 2


@needs_cuda_build
@pytest.mark.parametrize(
    ("gpu", "conf"), [("H100", ""), ("RTX 3050 Laptop", "expandable_segments:True")]
)
def test_a_prediction_has_the_same_figures(
    gpu: str, conf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if conf:
        monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", conf)
    native, wheel = (
        predict(TRAIN_GPT, gpu=gpu, allocator=name).to_dict() for name in ("native", "wheel")
    )
    assert {key for key in native if native[key] != wheel[key]} <= UNEQUAL
    assert "PyTorch's own allocator" in str(wheel["assumptions"])


@needs_cuda_build
@in_a_process
def test_an_unknown_version_gets_its_own_allocator() -> None:
    from plimsoll.torch.simulated.simulation import Simulation

    versions.NEWEST = (2, 9)
    simulation = Simulation(Setup(("T4",)))
    assert simulation.has_own_allocator
    allocator = simulation.allocators[0]
    address = allocator.malloc("3MiB")
    assert allocator.memory_reserved() == 20 << 20
    allocator.free(address)
    allocator.check_invariants()


def test_a_build_without_cuda_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "is_cuda_build", lambda: False)
    assert own_allocator.allocator_of_unknown() == 0
    with pytest.raises(InputError, match=r"a build without CUDA$"):
        Options(allocator="wheel").request(TRAIN_GPT)


def test_where_it_cannot_be_built_the_known_rules_serve(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> int:
        raise InputError("g++ could not build it")

    monkeypatch.setattr(own_allocator, "is_unknown_cuda_build", lambda: True)
    monkeypatch.setattr(own_allocator, "own_allocator", fails)
    assert own_allocator.allocator_of_unknown.__wrapped__() == 0
    assert capsys.readouterr().err == (
        "plimsoll: g++ could not build it; the nearest known rules serve instead\n"
    )
