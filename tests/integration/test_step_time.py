"""Compares predicted step times with measured times, and with each other.

For example, a step with twice the work must be predicted to take twice as long.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll import predict
from tests.recordings import LARGE, ROOT, or_skipped
from tests.simulated import output_of

if TYPE_CHECKING:
    from plimsoll.prediction.parts import StepTime

pytest.importorskip("torch")

BENCHMARKS = ROOT / "benchmarks"
WORKLOADS = LARGE.parent / "workloads"
QUICK = ["gpt", "lstm", "depthwise"]
OTHERS = ["vit", "unet", "clicks"]


def _benchmark() -> Any:
    spec = importlib.util.spec_from_file_location("steps", BENCHMARKS / "steps.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


steps = _benchmark()


@cache
def measured(gpu: str = "H200") -> dict[str, float]:
    """Returns the measured seconds of a step for each script: the median over all hosts."""
    file = "steps.json" if gpu == "H200" else f"steps_{gpu.lower()}.json"
    rows = json.loads((BENCHMARKS / "results" / file).read_text())
    return {
        name: statistics.median(row["step_ms"]) * 1e-3
        for name, row in rows.items()
        if isinstance(row, dict)
    }


@cache
def predicted(name: str, folder: Path, gpu: str = "H200") -> StepTime:
    """Predicts a step's time for a benchmark script or a workload; `name` may include options."""
    script, options = steps.parse(name)
    source = BENCHMARKS / "steps" if script in steps.OWN else WORKLOADS
    if script in steps.STEPS:
        options = {"steps": steps.STEPS[script], **options}
    program = folder / "program.py"
    program.write_text(
        f"import sys\nsys.path.insert(0, {str(source)!r})\n"
        f"from {script} import main\nmain(**{options!r})\n"
    )
    step = predict(program, gpu=gpu).step
    assert step is not None
    return step


def train(folder: Path, *, gpu: str = "H200", **options: object) -> StepTime:
    """Predicts a step's time for a small network of linear layers."""
    program = folder / "train.py"
    given = {"batch": 4096, "width": 4096, "layers": 4, "type": "float32", "reads": False} | options
    program.write_text(
        "import torch\n"
        + "".join(f"{name} = {value!r}\n" for name, value in given.items())
        + "net = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))\n"
        "net.to('cuda', getattr(torch, type))\n"
        "optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)\n"
        "data = torch.randn(batch, width).pin_memory()\n"
        "for _ in range(5):\n"
        "    x = data.to('cuda', non_blocking=True).to(getattr(torch, type))\n"
        "    loss = net(x).square().mean()\n"
        "    optimizer.zero_grad()\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
        "    if reads:\n"
        "        loss.item()\n"
    )
    step = predict(program, gpu=gpu).step
    assert step is not None
    return step


@pytest.mark.long
@pytest.mark.parametrize("name", QUICK)
def test_a_step_takes_what_was_measured_on_the_card(name: str, tmp_path: Path) -> None:
    step = predicted(name, tmp_path)
    assert step.seconds == pytest.approx(measured()[name], rel=0.35)
    low, high = step.seconds_range
    assert low <= measured()[name] <= high


@pytest.mark.long
@pytest.mark.parametrize("name", OTHERS)
def test_so_do_longer_scripts(name: str, tmp_path: Path) -> None:
    assert predicted(name, tmp_path).seconds == pytest.approx(measured()[name], rel=0.35)


@pytest.mark.long
@pytest.mark.parametrize("path", or_skipped(sorted(WORKLOADS.glob("*.py"))))
def test_so_do_the_recorded_workloads(path: Path, tmp_path: Path) -> None:
    step = predicted(path.stem, tmp_path)
    assert step.seconds == pytest.approx(measured()[path.stem], rel=0.35)


@pytest.mark.long
@pytest.mark.parametrize("name", or_skipped(["gpt2_adamw", "llama_checkpointed"]))
def test_another_card_is_predicted_by_its_rates(name: str, tmp_path: Path) -> None:
    step = predicted(name, tmp_path, "H100")
    assert step.seconds == pytest.approx(measured("H100")[name], rel=0.25)


@pytest.mark.long
@pytest.mark.parametrize("pair", steps.PAIRS, ids=" or ".join)
def test_of_two_variants_the_faster_one_is_known(pair: tuple[str, str], tmp_path: Path) -> None:
    one, other = (measured()[name] for name in pair)
    if abs(one / other - 1) <= 0.1:
        pytest.skip("both take about as long on the card")
    first, second = (predicted(name, tmp_path) for name in pair)
    assert (first.seconds < second.seconds) == (one < other)


@pytest.mark.long
def test_a_step_is_made_of_its_parts_and_lies_within_its_range(tmp_path: Path) -> None:
    step = train(tmp_path)
    parts = step.compute_seconds + step.copies_seconds + step.waiting_seconds
    assert step.seconds == pytest.approx(parts)
    assert step.seconds_range[0] <= step.seconds <= step.seconds_range[1]
    assert step.samples_per_second == pytest.approx(4096 / step.seconds)
    assert step.waiting_seconds < 0.05 * step.seconds
    assert "train.py" in step.lines[0].line


@pytest.mark.long
def test_twice_the_work_takes_twice_as_long(tmp_path: Path) -> None:
    few, many = train(tmp_path), train(tmp_path, layers=8)
    assert 1.8 < many.compute_seconds / few.compute_seconds < 2.1


@pytest.mark.long
def test_half_precision_is_faster_and_older_cards_are_slower(tmp_path: Path) -> None:
    single, half = train(tmp_path), train(tmp_path, type="bfloat16")
    assert half.compute_seconds < single.compute_seconds / 5
    assert train(tmp_path, gpu="T4").seconds > 5 * single.seconds


@pytest.mark.long
def test_small_networks_wait_for_the_host(tmp_path: Path) -> None:
    small = train(tmp_path, batch=8, width=32)
    assert small.waiting_seconds > 0.5 * small.seconds
    assert small.seconds == pytest.approx(small.host_seconds, rel=0.05)


@pytest.mark.long
def test_the_host_waits_for_what_it_reads(tmp_path: Path) -> None:
    free, bound = train(tmp_path), train(tmp_path, reads=True)
    assert bound.waiting_seconds > free.waiting_seconds
    assert bound.seconds > free.seconds


def test_a_copy_beside_kernels_costs_nothing_and_one_that_kernels_wait_for_does() -> None:
    ahead, after = (
        float(output_of(_copies, arguments=[ahead], gpu="H200")) for ahead in (True, False)
    )
    assert after > 1.5 * ahead


def _copies(ahead: bool) -> None:
    import torch

    data = torch.zeros(1 << 26).pin_memory()
    x = torch.zeros(8192, 8192, device="cuda")
    side = torch.cuda.Stream() if ahead else torch.cuda.current_stream()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(10):
        with torch.cuda.stream(side):
            there = data.to("cuda", non_blocking=True)
        there.record_stream(torch.cuda.current_stream())
        x @ x[:, :2816]
    end.record()
    torch.cuda.synchronize()
    print(start.elapsed_time(end))


@pytest.mark.long
def test_a_history_with_call_stacks_takes_the_hosts_time() -> None:
    plain, recorded = (
        float(output_of(_many_small, arguments=[history])) for history in (False, True)
    )
    assert recorded > 1.2 * plain


def _many_small(history: bool) -> None:
    import torch

    torch.zeros(1, device="cuda")
    if history:
        torch.cuda.memory._record_memory_history()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(100):
        torch.ones(10, device="cuda") + 1
    end.record()
    torch.cuda.synchronize()
    print(start.elapsed_time(end))


def test_a_graph_takes_its_time_at_each_replay_and_none_while_it_is_captured() -> None:
    captured, once, thrice = map(float, output_of(_replays).split())
    assert captured < 0.1 * once
    assert thrice == pytest.approx(3 * once, rel=0.05)


def _replays() -> None:
    import torch

    x = torch.zeros(8192, 8192, device="cuda")
    graph = torch.cuda.CUDAGraph()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
    torch.cuda.synchronize()
    marks[0].record()
    with torch.cuda.graph(graph):
        x @ x
    marks[1].record()
    for mark, count in zip(marks[2:], (1, 3), strict=True):
        for _ in range(count):
            graph.replay()
        mark.record()
    torch.cuda.synchronize()
    print(*(a.elapsed_time(b) for a, b in pairwise(marks)))


def test_sums_into_a_tensor_that_is_there_take_as_long_as_others() -> None:
    fresh, given = map(float, output_of(_sums).split())
    assert given == pytest.approx(fresh, rel=0.3)


def _sums() -> None:
    import torch

    x = torch.zeros(16384, 8192, device="cuda")
    y = torch.zeros(8192, device="cuda")
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
    marks[0].record()
    for _ in range(100):
        torch.sum(x, 0)
    marks[1].record()
    for _ in range(100):
        torch.sum(x, 0, out=y)
    marks[2].record()
    torch.cuda.synchronize()
    print(*(a.elapsed_time(b) for a, b in pairwise(marks)))
