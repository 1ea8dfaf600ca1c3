"""Tests `plimsoll.install` as far as that is possible without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import plimsoll
from plimsoll import InputError, SimulatedGpu, _core
from plimsoll.base.telemetry.exit_summaries import make_summary, of_used_gpus
from plimsoll.base.telemetry.nvml import Nvml
from plimsoll.base.torch_environment import WITHOUT_CACHE
from plimsoll.base.units import GiB, MiB
from plimsoll.engine.plans.plan_file import write_plan
from plimsoll.engine.plans.program_plan import MadeFor, Plan, RankPlan
from plimsoll.offloading.tiers.limits import Tiers
from plimsoll.torch.array_libraries.rmm_resources import RmmCallbacks
from plimsoll.torch.live import live_engines
from tests.simulated import PROGRAMS
from tests.unit.array_stand_ins import RmmStream
from tests.unit.fake_nvml import FakeNvml, Gpu

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch")
needs_no_cuda = pytest.mark.skipif(torch.version.cuda is not None, reason="PyTorch has CUDA")

AUTOLOAD = "from plimsoll.torch.session.autoload import autoload; autoload()"


def python(text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def test_an_unknown_allocator_is_refused() -> None:
    with pytest.raises(InputError, match="unknown allocator 'fast'; there are elastic and native"):
        plimsoll.install("fast")  # type: ignore[arg-type]


@needs_no_cuda
def test_a_cpu_build_of_pytorch_is_refused() -> None:
    with pytest.raises(InputError, match="has no CUDA"):
        plimsoll.install()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Returns a list that collects the engines made in a test, on simulated cards of 1 GiB."""
    made = []

    def cuda(allocator: str, conf: str, version: str, device: int, summary: bool) -> Any:
        gpu = SimulatedGpu(GiB)
        made.append(_core.Engine.simulated(gpu._driver, allocator, conf, version, device, summary))
        return made[-1]

    engines = SimpleNamespace(cuda=cuda)
    monkeypatch.setattr(live_engines, "_core", SimpleNamespace(Engine=engines))
    return made


class TestPlans:
    """Tests that the plan, which places blocks at fixed offsets, is chosen by rank and GPU."""

    @pytest.fixture
    def plan(self, tmp_path: Path) -> Path:
        path = tmp_path / "plan.json"
        slots = [(4 * MiB, 4 * MiB, 0), (8 * MiB, 8 * MiB, 4 * MiB)]
        of_gpu = _core.ProgramPlan([([(2, 1)], slots, 0)])
        ranks = (RankPlan(0, {0: of_gpu}), RankPlan(1, {1: of_gpu}))
        write_plan(Plan(MadeFor("train.py"), ranks), path)
        return path

    def engines(self, plan: Path) -> live_engines.LiveEngines:
        choice = live_engines._Choice("elastic", "", Tiers(), str(plan))
        return live_engines.LiveEngines(choice, keeps_summary=False)

    @pytest.mark.usefixtures("made")
    def test_the_account_says_how_far_it_was_followed(
        self, plan: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RANK", "1")
        engines = self.engines(plan)
        engine = engines.open(1)
        first = engine.allocate(4 * MiB, 0)
        assert engine.allocate(8 * MiB, 0) == first + 4 * MiB
        (summary,) = engines.summaries()
        assert summary.plan == (
            "100.0% of the bytes of 2 requests above 1 MiB lay where the plan says"
        )
        assert summary.line().endswith(f"; {summary.plan}")

    @pytest.mark.usefixtures("made")
    def test_one_line_says_that_there_is_none(
        self, plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("RANK", "2")
        engines = self.engines(plan)
        engines.open(0).allocate(4 * MiB, 0)
        assert capsys.readouterr().err == f"plimsoll: {plan} has no plan for rank 2, GPU 0\n"
        assert engines.summaries()[0].plan == "the plan has no place for any request above 1 MiB"

    def test_another_allocator_follows_none(self, plan: Path) -> None:
        with pytest.raises(InputError, match="a plan is for the elastic allocator, not native"):
            live_engines.put_in_place(
                "native", "", Tiers(), plan=str(plan), keeps_summary=False, under_pytorch=False
            )

    def test_what_is_no_plan_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "plan.json").write_text("[]")
        with pytest.raises(InputError, match="no plan: there is no"):
            self.engines(tmp_path / "plan.json")


class TestSizes:
    """Tests limits on memory.

    `plimsoll.install` itself refuses a limit above the memory of every card. If a limit is above
    the memory of only some cards, each request for the engine of such a card raises an error.
    """

    def engines(self, **sizes: int) -> live_engines.LiveEngines:
        choice = live_engines._Choice("elastic", "", Tiers(**sizes))  # type: ignore[arg-type]
        return live_engines.LiveEngines(choice, keeps_summary=False)

    def test_each_request_says_so_and_there_is_one_engine(self, made: list[Any]) -> None:
        engines = self.engines(dedicated_bytes=2 * GiB)
        for _ in range(3):
            with pytest.raises(InputError, match=r"2\.00 GiB of dedicated memory is more than"):
                engines.open(0)
        assert len(made) == 1
        assert engines.opened() == {0: made[0]}

    def test_a_limit_that_holds_is_set_once(self, made: list[Any]) -> None:
        engines = self.engines(dedicated_bytes=GiB // 2)
        assert engines.open(0) is engines.open(0) is made[0]
        assert made[0].limit == GiB // 2
        made[0].set_dedicated_limit(GiB // 4)  # as `set_tiers` does in a running program
        assert engines.open(0).limit == GiB // 4

    @pytest.mark.usefixtures("made")
    def test_garbage_on_one_card_may_be_freed_while_another_is_opened(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        engines = self.engines()
        callbacks = RmmCallbacks(engines, 0)
        address = callbacks.allocate(1, RmmStream(0))
        maker = vars(live_engines)["_core"].Engine
        make = maker.cuda

        def make_and_collect(*choice: Any) -> Any:
            # as if garbage collection freed a buffer in a reference cycle
            callbacks.deallocate(address, 1, RmmStream(0))
            return make(*choice)

        monkeypatch.setattr(maker, "cuda", make_and_collect)
        opening = threading.Thread(target=engines.open, args=(1,), daemon=True)
        opening.start()
        opening.join(10)
        assert not opening.is_alive()
        assert engines.open(0).statistics()["allocated_bytes.all.current"] == 0
        assert capsys.readouterr().err == ""

    @pytest.mark.usefixtures("made")
    def test_pytorch_learns_of_engines_that_another_library_opens(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engines = self.engines()
        monkeypatch.setattr(vars(live_engines)["_core"], "engine_api", lambda: 0, raising=False)
        learned: list[int] = []
        opened_by_pytorch: list[Any] = []

        def adopt(device: int) -> None:  # asks for the engine, as plimsoll's bridge to PyTorch does
            learned.append(device)
            opened_by_pytorch.append(engines.open(device))

        library = SimpleNamespace(plimsoll_bridge_install=lambda *_: 0, plimsoll_bridge_adopt=adopt)
        begins: list[Any] = []  # callbacks for the moment when PyTorch initializes CUDA
        cuda = SimpleNamespace(_lazy_call=begins.append)
        first = engines.open(0)
        live_engines._use_bridge(SimpleNamespace(cuda=cuda), library, engines)  # type: ignore[arg-type]
        assert learned == []
        begins[0]()
        assert (learned, opened_by_pytorch) == ([0], [first])
        second = engines.open(1)
        assert engines.open(1) is second
        assert (learned, opened_by_pytorch) == ([0, 1], [first, second])

    def test_what_no_card_has_is_refused_at_once(self) -> None:
        nvml = Nvml(FakeNvml(Gpu("GPU-a", total=GiB), Gpu("GPU-b", total=3 * GiB)))
        live_engines._check_sizes(Tiers(dedicated_bytes=3 * GiB), nvml)
        with pytest.raises(InputError, match=r"4\.00 GiB .* than any card here has: 3\.00 GiB"):
            live_engines._check_sizes(Tiers(dedicated_bytes=4 * GiB), nvml)

    @pytest.mark.parametrize(
        "library",
        [
            FakeNvml(fails="no driver"),
            FakeNvml(Gpu("GPU-a", total=GiB), Gpu("GPU-b", fails={"nvmlDeviceGetMemoryInfo"})),
        ],
        ids=["no NVML", "a silent card"],
    )
    def test_what_is_not_known_is_not_refused(self, library: FakeNvml) -> None:
        live_engines._check_sizes(Tiers(dedicated_bytes=4 * GiB), Nvml(library))

    def test_what_no_host_has_is_refused_at_once(self) -> None:
        with pytest.raises(InputError, match="of shared memory is more than the host can lock"):
            live_engines._check_sizes(Tiers(shared_bytes=1 << 50))


class TestAutoload:
    def test_nothing_is_imported_unless_it_is_asked_for(self) -> None:
        done = python(f"import sys; {AUTOLOAD}; print(*sys.modules)", PLIMSOLL_ALLOCATOR="")
        assert done.returncode == 0, done.stderr
        loaded = set(done.stdout.split())
        assert "plimsoll.torch.session.autoload" in loaded
        assert not loaded & {"numpy", "pyarrow", "torch", "plimsoll._core"}

    def test_a_bad_choice_gets_one_line_and_status_2(self) -> None:
        done = python(AUTOLOAD, PLIMSOLL_ALLOCATOR="fast")
        assert done.returncode == 2
        assert done.stderr.splitlines() == [
            "plimsoll: PLIMSOLL_ALLOCATOR is 'fast'; there are elastic, native and torch"
        ]

    @needs_no_cuda
    @pytest.mark.parametrize("allocator", ["elastic", "native", "torch"])
    def test_it_is_silent_where_pytorch_has_no_cuda(self, allocator: str) -> None:
        done = python(AUTOLOAD, PLIMSOLL_ALLOCATOR=allocator, PLIMSOLL_REPORT="1")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


class TestAccount:
    FIGURES: dict[str, Any] = {  # noqa: RUF012
        "peak_allocated_bytes": 3 << 30,
        "peak_reserved_bytes": 4 << 30,
        "card_peak_bytes": 5 << 30,
        "peak_pinned_bytes": 1 << 30,
        "torch_peak_reserved_bytes": 6 << 30,
        "torch_num_ooms": 0,
        "torch_stopped": None,
    }

    def test_a_line_says_it_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RANK", "2")
        assert make_summary("elastic", 1, self.FIGURES).line() == (
            "rank 2, GPU 1, the elastic allocator: peak allocated 3.00 GiB, reserved 4.00 GiB, "
            "in use on the card 5.00 GiB; page-locked host memory 1.00 GiB; "
            "PyTorch's allocator would have reserved 6.00 GiB"
        )

    def test_what_was_in_shared_memory_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("RANK", raising=False)
        figures = {**self.FIGURES, "peak_shared_reserved_bytes": 1 << 29}
        summary = make_summary("elastic", 0, figures)
        assert summary.peak_shared_bytes == 1 << 29
        assert "reserved 4.00 GiB, in shared memory 512.00 MiB, in use on the card" in (
            summary.line()
        )

    def test_gpus_without_memory_are_left_out_unless_host_memory_is_locked(self) -> None:
        of_first = {"peak_allocated_bytes": 0, "peak_reserved_bytes": 0}
        empty = [make_summary("torch", device, of_first) for device in range(2)]
        locked = [replace(each, peak_pinned_bytes=1 << 30) for each in empty]
        used = replace(locked[1], peak_reserved_bytes=2 << 20)
        assert of_used_gpus(empty) == []
        assert of_used_gpus(locked) == locked[:1]
        assert of_used_gpus([locked[0], used]) == [used]

    def test_running_out_of_memory_is_told(self) -> None:
        line = make_summary("elastic", 0, {**self.FIGURES, "torch_num_ooms": 1}).line()
        assert line.endswith("would have run out of memory, with 6.00 GiB reserved")
        none = {"torch_peak_reserved_bytes": 0, "torch_num_ooms": 1}
        line = make_summary("elastic", 0, {**self.FIGURES, **none}).line()
        assert line.endswith("; with PyTorch's allocator the first request would have failed")

    def test_what_is_unknown_is_left_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("RANK", raising=False)
        summary = make_summary("elastic", 0, {**self.FIGURES, "torch_stopped": "it was too slow"})
        assert summary.torch_peak_reserved_bytes is None
        assert summary.torch_num_ooms is None
        assert summary.rank is None
        assert "PyTorch" not in summary.line()

    def test_reports_are_appended_to_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "summary.jsonl"
        text = (
            "from plimsoll.base.telemetry.exit_summaries import ExitSummary, report_at_exit\n"
            f"report_at_exit(lambda: [ExitSummary('torch', None, 7, 0, 1, 2)], {str(path)!r})"
        )
        for _ in range(2):
            assert python(text).returncode == 0
        first, second = map(json.loads, path.read_text().splitlines())
        assert first == second
        assert first["schema"] == 2
        assert first["peak_reserved_bytes"] == 2
        assert first["card_peak_bytes"] is None

    def test_processes_of_multiprocessing_report_too(self) -> None:
        path = PROGRAMS / "telemetry" / "summary_of_a_child.py"
        done = subprocess.run(
            [sys.executable, str(path)], capture_output=True, text=True, check=True
        )
        assert done.stderr.startswith(
            "plimsoll: rank 3, GPU 0, PyTorch's allocator: peak allocated"
        )


@pytest.mark.parametrize(("value", "is_told"), [("1", True), ("0", False), ("", False)])
def test_a_forbidden_cache_is_told_once(
    value: str,
    is_told: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    session = import_module("plimsoll.torch.session.install")
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", value)
    monkeypatch.setattr(session, "_check_pytorch", lambda: None)
    monkeypatch.setattr(session, "put_in_place", lambda *_, **__: None)
    monkeypatch.setattr(session, "EngineCounters", lambda _: None)
    monkeypatch.setattr(session, "_publish_once_cuda_runs", lambda *_: None)
    monkeypatch.setattr(session, "serve_libraries", lambda *_: None)
    session.install()
    told = f"plimsoll: {WITHOUT_CACHE}; plimsoll's allocator serves none\n"
    assert capsys.readouterr().err == (told if is_told else "")
