"""What is compiled: where Triton is missing, which functions Dynamo sees, what the report says."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from plimsoll.gpus import gpu_profile
from plimsoll.prediction.child.compiled_report import compiled_use
from plimsoll.prediction.compiled_use import CompiledFunction, CompiledUse
from plimsoll.torch.building import versions
from plimsoll.torch.simulated.compiled import frames, settings, without_triton
from plimsoll.torch.simulated.compiled.kernels import KernelCounts
from plimsoll.torch.simulated.compiled.stores import stored_arguments
from plimsoll.torch.simulated.compiled.triton_driver import clock_mhz


class TestWithoutTriton:
    def torch(self) -> Any:
        torch = ModuleType("torch")
        torch.compile = lambda model, **options: ("compiled", model, options)  # type: ignore[attr-defined]
        without_triton.compile_without_triton(torch)
        return torch

    def test_what_inductor_would_compile_runs_eagerly_and_is_told(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told: list[str] = []
        monkeypatch.setattr(without_triton, "assume", lambda _, what: told.append(what))
        monkeypatch.setattr(without_triton, "torch_version", lambda: (2, 12))
        assert self.torch().compile(len) is len
        assert self.torch().compile(fullgraph=True)(len) is len
        assert len(told) == 2
        assert "pip install 'triton==3.7.*'" in told[0]

    def test_other_backends_need_none(self) -> None:
        assert self.torch().compile(len, backend="aot_eager")[0] == "compiled"


def test_each_known_version_has_a_triton() -> None:
    known = [settings.matching_triton((2, minor)) for minor in range(9, versions.NEWEST[1] + 1)]
    assert known[0] == "3.5"
    assert known == sorted(known)


@pytest.mark.parametrize(("card", "mhz"), [("H200", 1980), ("A100-80GB", 1410), ("RTX 4090", 2520)])
def test_the_clock_is_that_of_the_cards_operations(card: str, mhz: float) -> None:
    assert clock_mhz(gpu_profile(card)) == pytest.approx(mhz, rel=0.01)


def test_own_functions_are_found_with_those_inside_them() -> None:
    codes = set(frames._own_codes())
    assert without_triton.compile_without_triton.__code__ in codes
    inner = [c for c in without_triton.compile_without_triton.__code__.co_consts
             if hasattr(c, "co_name")]  # fmt: skip
    assert inner
    assert set(inner) <= codes
    assert TestWithoutTriton.torch.__code__ not in codes


def test_a_report_survives_being_written() -> None:
    use = CompiledUse(
        [CompiledFunction("a.py:1 f", 2, 1, "why")], {"a reason": 1}, 0, 3, ["own"], 9
    )
    values = {
        **use.__dict__,
        "functions": [function.__dict__ for function in use.functions],
    }
    assert CompiledUse.from_dict(values) == use


def test_nothing_compiled_is_no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils", raising=False)
    simulation: Any = SimpleNamespace(kernel_counts=KernelCounts(), captures=0)
    assert compiled_use(simulation) is None


STORES = """
  tt.func public @kernel(%arg0: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %arg1: !tt.ptr<i64>, %arg2: i32) {
    %0 = tt.get_program_id x : i32
    %1 = tt.addptr %arg1, %0 : !tt.ptr<i64>, i32
    %2 = tt.load %1 : !tt.ptr<i64>
    %3 = tt.splat %arg0 : !tt.ptr<f32> -> tensor<8x!tt.ptr<f32>>
    %4 = scf.for %arg3 = %c0 to %arg2 step %c1 iter_args(%arg4 = %3) -> (tensor<8x!tt.ptr<f32>>)  : i32 {
      %5 = tt.addptr %arg4, %2 : tensor<8x!tt.ptr<f32>>, tensor<8xi32>
      STORE
      scf.yield %5 : tensor<8x!tt.ptr<f32>>
    }
    tt.return
  }
"""  # noqa: E501


@pytest.mark.parametrize(
    ("store", "arguments"),
    [
        ("tt.store %5, %cst, %mask : tensor<8x!tt.ptr<f32>>", {0}),
        ("%6 = tt.atomic_rmw fadd, acq_rel, gpu, %arg4, %cst, %mask : (...) -> f32", {0}),
        ("tt.store %1, %cst : !tt.ptr<i64>", {1}),
        ("tt.call @other(%5) : (tensor<8x!tt.ptr<f32>>) -> ()", None),
        ("", None),
    ],
)
def test_stores_go_to_arguments(store: str, arguments: set[int] | None) -> None:
    assert stored_arguments(STORES.replace("STORE", store)) == arguments
