"""Tests torch.compile on simulated GPUs, with and without Triton, and the report about it."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from plimsoll.engine.gpus.profiles import gpu_profile
from plimsoll.prediction.child.compiled_parts import _stepped
from plimsoll.prediction.child.compiled_report import _first_calls, compiled_use
from plimsoll.prediction.compiled_use import CompiledFunction, CompiledUse, EagerUse
from plimsoll.torch.building import versions
from plimsoll.torch.simulated.chips import chip_of
from plimsoll.torch.simulated.compiled import first_calls, frames, without_triton
from plimsoll.torch.simulated.compiled.first_calls import FirstCall, FirstCalls
from plimsoll.torch.simulated.compiled.kernels import KernelCounts
from plimsoll.torch.simulated.compiled.stores import stored_arguments
from plimsoll.torch.simulated.compiled.templates import (
    Template,
    bytes_of,
    multiplied,
    template_of,
)
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
    known = [versions.companions((2, minor)).triton for minor in range(9, versions.NEWEST[1] + 1)]
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
        [CompiledFunction("a.py:1 f", 2, 1, "why")], {"a reason": 1}, 0, 3, ["own"], 9,
        {"tuning": 5}, "tuning", EagerUse(1, 2, 0.5),
    )  # fmt: skip
    assert CompiledUse.from_dict(asdict(use)) == use
    assert CompiledUse.from_dict(asdict(replace(use, eager=None))).eager is None


def test_nothing_compiled_is_no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils", raising=False)
    first_calls = SimpleNamespace(all=[])
    simulation: Any = SimpleNamespace(
        kernel_counts=KernelCounts(), captures=0, first_calls=first_calls
    )
    assert compiled_use(simulation, 0, np.zeros(0, np.int64)) is None


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


TEMPLATE = """
def triton_mm(arg_A, arg_B, out_ptr0):
    ALLOW_TF32 : tl.constexpr = True
    BLOCK_M : tl.constexpr = 128
    BLOCK_N : tl.constexpr = 64
    BLOCK_K : tl.constexpr = 32
    stride_am = 1024
    stride_ak = 1
    stride_bk = {stride}
"""


class TestTemplates:
    def test_a_source_names_its_blocks(self) -> None:
        options = SimpleNamespace(num_stages=3, num_warps=4)
        found = template_of(TEMPLATE.format(stride=1), options)
        assert found == Template(128, 64, 32, 3, 4, rounds_floats=True, is_along_terms=True)
        assert found.tile == [128, 64, 32, 3, 4, 1, 1]
        across = template_of(TEMPLATE.format(stride=2048), options)
        assert across is not None
        assert not across.is_along_terms

    @pytest.mark.parametrize("source", ["", "    BLOCK_M : tl.constexpr = 128\n"])
    def test_other_kernels_are_none(self, source: str) -> None:
        assert template_of(source, None) is None

    # `fits` says whether an H200 launched a kernel with these tile sizes. A thread block of an H200
    # can have up to 232,448 bytes of on-chip shared memory.
    @pytest.mark.parametrize(
        ("rows", "columns", "terms", "buffers", "item", "fits"),
        [
            (128, 128, 128, 4, 2, False),
            (64, 128, 128, 4, 2, True),
            (64, 32, 128, 5, 4, False),
            (64, 128, 64, 5, 4, False),
            (128, 128, 64, 3, 4, True),
            (16, 128, 128, 4, 4, True),
            (16, 64, 128, 5, 4, True),
        ],
    )
    def test_blocks_fit_as_they_do_on_the_card(
        self, rows: int, columns: int, terms: int, buffers: int, item: int, fits: bool
    ) -> None:
        template = Template(rows, columns, terms, buffers, 4, False, False)
        assert (template.shared_bytes(item, chip_of((9, 0))) <= 232_448) == fits

    def test_what_is_multiplied_follows_from_sizes(self) -> None:
        def named(**shapes: tuple[int, ...]) -> dict[str, Any]:
            return {k: SimpleNamespace(shape=v, dtype="half") for k, v in shapes.items()}

        product = multiplied(named(arg_A=(8, 2), arg_B=(2, 4), out_ptr0=(8, 4)))
        assert product == ([1, 8, 4, 2], "half")
        transposed = multiplied(named(arg_A=(2, 8), arg_B=(4, 2), out_ptr0=(8, 4)))
        assert transposed == product
        batched = multiplied(named(arg_A=(3, 8, 2), arg_B=(3, 2, 4), out_ptr0=(3, 8, 4)))
        assert batched == ([3, 8, 4, 2], "half")
        images = multiplied(named(arg_X=(1, 3, 9, 9), arg_W=(16, 3, 3, 3), out_ptr0=(1, 16, 7, 7)))
        assert images == ([1, 49, 16, 27], "half")
        fused = multiplied(named(in_ptr0=(8, 4), arg_A=(8, 2), arg_B=(2, 4), out_ptr1=(8, 4)))
        assert fused == product
        assert multiplied(named(in_ptr0=(8,), out_ptr0=(8,))) is None
        assert multiplied(named(arg_A=(8, 2), arg_B=(2, 4))) is None

    @pytest.mark.parametrize(
        ("kind", "size"), [("*bf16", 2), ("*fp32", 4), ("*fp8e4nv", 1), ("*i1", 1), ("", 1)]
    )
    def test_kinds_of_numbers_have_sizes(self, kind: str, size: int) -> None:
        assert bytes_of(kind) == size


class TestFirstCalls:
    def module(self, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, FirstCalls, list[int]]:
        class Holder:
            def plain(self, number: int) -> int:
                clock.append(0)
                return number

            @classmethod
            def of_class(cls, number: int) -> tuple[str, int]:
                return cls.__name__, number

            @staticmethod
            def fails() -> None:
                raise ValueError("no")

        clock: list[int] = []
        module: Any = ModuleType("compiler")
        module.Holder = Holder
        module.free = lambda: "free"
        names = ("Holder.plain", "Holder.of_class", "Holder.fails", "free", "Holder.gone", "No.one")
        places = {"compiler": tuple((name, name) for name in names)}
        monkeypatch.setattr(first_calls, "PLACES", places)
        noted = FirstCalls(lambda: (len(clock),))
        noted.watch(module, lambda: None)
        return module, noted, clock

    def test_functions_of_all_kinds_are_noted_and_do_what_they_did(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        module, noted, _ = self.module(monkeypatch)
        assert module.Holder().plain(3) == 3
        assert module.Holder.of_class(4) == ("Holder", 4)
        assert module.free() == "free"
        with pytest.raises(ValueError, match="no"):
            module.Holder.fails()
        assert noted.all == [
            FirstCall("Holder.plain", (0,), (1,)),
            FirstCall("Holder.of_class", (1,), (1,)),
            FirstCall("free", (1,), (1,)),
            FirstCall("Holder.fails", (1,), (1,)),
        ]

    def test_the_most_beyond_what_was_there_counts(self) -> None:
        level = np.array([10, 10, 70, 30, 10, 25, 10])
        calls = [
            FirstCall("tuning", (2,), (4,)),
            FirstCall("tuning", (5,), (7,)),
            FirstCall("folding", (6,), (6,)),
            FirstCall("none", (6,), (7,)),
        ]
        assert _first_calls(calls, 0, level) == ({"tuning": 60}, "tuning")
        later = np.append(level, 71)
        assert _first_calls(calls, 0, later) == ({"tuning": 60}, None)


class TestStepped:
    class Optimizer:
        def step(self) -> None: ...

    def test_a_function_that_takes_a_step_names_its_optimizer(self) -> None:
        optimizer, other = self.Optimizer(), self.Optimizer()

        def update() -> None:
            optimizer.step()

        def reads() -> object:
            return other

        assert _stepped(update, self.Optimizer) == [optimizer]
        assert _stepped(reads, self.Optimizer) == []
        assert _stepped(optimizer.step, self.Optimizer) == [optimizer]
        assert _stepped(len, self.Optimizer) == []

    def test_one_that_an_object_holds_is_found(self) -> None:
        class Trainer:
            def __init__(self, optimizer: object) -> None:
                self.optimizer = optimizer

            def update(self) -> None:
                self.optimizer.step()  # type: ignore[attr-defined]

        optimizer = self.Optimizer()
        assert _stepped(Trainer(optimizer).update, self.Optimizer) == [optimizer]

    def test_an_empty_cell_is_none(self) -> None:
        def update() -> None:
            optimizer.step()

        assert _stepped(update, self.Optimizer) == []
        optimizer = self.Optimizer()
