"""Tests the text about serving engines, and the driver's memory for CUDA graphs."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.base.errors import OutOfMemoryError
from plimsoll.engine.simulator.machine import SimulatedGpu
from plimsoll.prediction.child.serving_ranks import lacks_memory, serving_of_all
from plimsoll.prediction.rank_use import RankUse
from plimsoll.prediction.recipes.engines.asked_load import asked_lengths, asked_load, spread
from plimsoll.prediction.recipes.engines.engine_processes import run_together
from plimsoll.prediction.recipes.served import (
    ENGINES,
    engine_of,
    engine_of_script,
    served_title,
)
from plimsoll.prediction.serving_text import serving_lines, serving_verdict, serving_why
from plimsoll.torch.simulated.graph_memory import GraphMemory
from plimsoll.torch.simulated.serving_use import ServingUse, SleepUse

if TYPE_CHECKING:
    from pathlib import Path

GiB = 1 << 30
MiB = 1 << 20


def prediction(**facts: Any) -> Any:
    use = ServingUse("vLLM 1.0", **facts)
    return SimpleNamespace(serving=use, out_of_memory=None, headroom_bytes=2 * GiB, ranks=[])


def ranked(own: ServingUse, *others: ServingUse) -> Any:
    ranks = [RankUse(rank, 0, rank, serving=use) for rank, use in enumerate((own, *others))]
    return SimpleNamespace(serving=own, out_of_memory=None, headroom_bytes=2 * GiB, ranks=ranks)


def test_an_engine_that_starts_says_what_it_leaves() -> None:
    assert serving_verdict(prediction(stage="load")) == "vLLM 1.0 starts, and leaves 2.00 GiB"


def test_an_engine_that_refuses_says_what_lacks() -> None:
    p = prediction(stage="kv_cache", refusal="too long", missing_bytes=GiB)
    assert serving_verdict(p) == "vLLM 1.0 refuses to start, 1.00 GiB too little"
    assert serving_why(p) == "Why: too long"


@pytest.mark.parametrize(
    ("stage", "words"), [("capture", "while it captures CUDA graphs"), ("load", "under load")]
)
def test_an_engine_that_runs_out_says_in_which_stage(stage: Any, words: str) -> None:
    p = prediction(stage="load", failed_in=stage)
    assert serving_verdict(p) == f"vLLM 1.0 runs out of memory {words}"


def test_the_cache_bounds_long_requests_and_a_setting_bounds_short_ones() -> None:
    facts = {"kv_tokens": 100_000, "kv_cache_bytes": GiB, "max_model_len": 10_000}
    by_cache = "\n".join(serving_lines(prediction(**facts, max_num_seqs=64)))
    assert "the KV cache limits parallel requests: 10.0 of 10,000 tokens" in by_cache
    by_setting = "\n".join(serving_lines(prediction(**facts, max_num_seqs=8)))
    assert "max_num_seqs limits parallel requests: 8" in by_setting


def test_an_engine_that_sleeps_says_what_it_frees_and_what_waking_takes() -> None:
    sleeps = [
        SleepUse(1, 3, 8 * GiB, 7 * GiB, GiB, 2 * GiB, 7 * GiB, 9 * GiB),
        SleepUse(2, 1, 8 * GiB, 7 * GiB, GiB),
    ]
    text = list(serving_lines(prediction(stage="load", weights_bytes=GiB, sleeps=sleeps)))
    assert text[-2:] == [
        "  asleep, level 1      1.00 GiB  stays on the card; sleep frees 8.00 GiB, takes 2.00 GiB"
        " of host memory, waking takes 7.00 GiB",
        "  asleep, level 2      1.00 GiB  stays on the card; sleep frees 8.00 GiB",
    ]


def test_an_engine_that_cannot_wake_says_what_lacks() -> None:
    asleep = SleepUse(1, 1, 8 * GiB, 7 * GiB, GiB, 2 * GiB, None, 5 * GiB)
    p = prediction(stage="load", failed_in="wake_up", sleeps=[asleep])
    assert serving_verdict(p) == "vLLM 1.0 runs out of memory while it wakes up"
    assert serving_why(p) == "Why: waking takes 7.00 GiB again, and the card has 5.00 GiB free."
    assert ServingUse.from_dict(asdict(p.serving)) == p.serving


def test_ranks_that_have_the_same_share_a_figure_and_others_have_a_range() -> None:
    own, other = (
        ServingUse("vLLM 1.0", stage="load", weights_bytes=weights, activation_bytes=GiB)
        for weights in (2 * GiB, 3 * GiB)
    )
    p = ranked(own, other)
    assert serving_verdict(p) == "vLLM 1.0 starts on 2 ranks, and leaves 2.00 GiB"
    text = "\n".join(serving_lines(p))
    assert "vLLM 1.0, by its own account, each of 2 ranks:" in text
    assert "  weights          2.00 GiB to 3.00 GiB" in text
    assert "  activations          1.00 GiB" in text


def test_what_one_process_of_an_engine_knows_is_told_for_all() -> None:
    planner = asdict(ServingUse("vLLM 1.0", refusal="too long", missing_bytes=5, fitting_len=9))
    worker = asdict(ServingUse("vLLM 1.0", stage="kv_cache", weights_bytes=GiB))
    found = serving_of_all(worker, [{"serving": planner}, {"serving": worker}, {"serving": None}])
    assert found is not None
    assert (found["refusal"], found["missing_bytes"], found["fitting_len"]) == ("too long", 5, 9)
    assert found["weights_bytes"] == GiB
    assert lacks_memory(found)
    failed = {**worker, "failed_in": "capture"}
    found = serving_of_all(worker, [{"serving": worker}, {"serving": failed}])
    assert found is not None
    assert found["failed_in"] == "capture"
    assert not lacks_memory(worker)
    assert serving_of_all(None, [{"serving": None}]) is None


def test_without_an_engine_nothing_is_said() -> None:
    p: Any = SimpleNamespace(serving=None)
    assert serving_verdict(p) is serving_why(p) is None
    assert list(serving_lines(p)) == []


@pytest.mark.parametrize(
    ("words", "title"),
    [
        ("vllm serve m", "vLLM"),
        ("/usr/bin/vllm serve", "vLLM"),
        ("-m vllm.entrypoints.openai.api_server --model m", "vLLM"),
        ("sglang serve m", "SGLang"),
        ("-m sglang.launch_server --model-path m", "SGLang"),
        ("vllm bench", None),
        ("sglang generate", None),
        ("train.py serve", None),
        ("sglang.launch_server --model-path m", None),
    ],
)
def test_a_servers_command_is_told_from_others(words: str, title: str | None) -> None:
    script, *arguments = words.removeprefix("-m ").split()
    found = engine_of(script, arguments, module=words.startswith("-m "))
    assert (found and found.title) == title


def test_without_a_program_there_is_no_engine() -> None:
    assert engine_of(None, [], module=False) is None


def test_a_run_of_an_engine_is_named_by_its_model() -> None:
    vllm, sglang = ENGINES
    assert served_title(vllm, ["org/m", "--max-model-len", "8"]) == "vllm serve org/m"
    assert served_title(vllm, ["--model", "org/m"]) == "vllm serve org/m"
    assert served_title(sglang, ["--tp", "2", "--model-path=org/m"]) == "sglang serve org/m"
    assert engine_of_script(sglang.script) is sglang
    assert engine_of_script("train.py") is None


def test_an_engine_is_told_its_options_by_their_names() -> None:
    use = ServingUse(
        "SGLang 1.0", utilization=0.8, kv_cache_bytes=GiB, kv_tokens=1000, max_model_len=100,
        max_num_seqs=4, available_bytes=3 * GiB,
    )  # fmt: skip
    p = SimpleNamespace(serving=use, out_of_memory=None, headroom_bytes=GiB, ranks=[])
    why = serving_why(p)  # type: ignore[arg-type]
    assert why is not None
    assert "all that the weights leave of 0.8 of the card (mem_fraction_static)" in why
    text = "\n".join(serving_lines(p))  # type: ignore[arg-type]
    assert "  free                 3.00 GiB  once it is ready (available_gpu_mem)" in text
    assert "max_running_requests limits parallel requests: 4" in text


def test_a_load_is_read_from_options_and_files(tmp_path: Path) -> None:
    load, rest = asked_load(["org/m", "--requests", "2", "--input-len", "7", "--tp", "2"])
    assert rest == ["org/m", "--tp", "2"]
    assert asked_lengths(load) == [(7, 128), (7, 128)]
    assert asked_lengths(asked_load([])[0]) is None
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("10 20\n\n30 40\n")
    assert asked_lengths(asked_load(["--lengths", str(lengths)])[0]) == [(10, 20), (30, 40)]


def test_the_lengths_of_a_load_reach_from_the_shortest_to_the_longest() -> None:
    lengths = spread(200, 4096)
    assert min(lengths) == 16
    assert 3500 < max(lengths) <= 4096
    assert len(set(lengths)) > 100


def graphs(memory: str, nodes: int = 100) -> tuple[SimulatedGpu, GraphMemory]:
    gpu = SimulatedGpu(memory)
    return gpu, GraphMemory([gpu], lambda capture: nodes if capture else 0)


def test_graphs_take_memory_of_the_card_in_pieces() -> None:
    gpu, memory = graphs("1GiB")
    memory.add(1, 0, 7)
    assert gpu.dedicated_used_bytes == memory.taken[0] == 2 * MiB
    for graph in range(2, 102):
        memory.add(graph, 0, 7)
    assert 40 * MiB < memory.taken[0] < 50 * MiB


def test_memory_of_graphs_that_are_gone_serves_others() -> None:
    gpu, memory = graphs("1GiB")
    for graph in range(100):
        memory.add(graph, 0, 7)
    taken = gpu.dedicated_used_bytes
    for graph in range(100):
        memory.remove(graph)
        memory.add(100 + graph, 0, 7)
    assert gpu.dedicated_used_bytes == taken
    memory.remove(12345)  # not one of these graphs


def test_what_graphs_take_has_bounds() -> None:
    _, memory = graphs("1GiB")
    for graph in range(100):
        memory.add(graph, 0, 7)
    least, most = memory.bounds(0)
    assert least < memory.taken[0] < most
    bounds = (least, most)
    p = prediction(graph_bytes=memory.taken[0], graph_range_bytes=bounds, graph_sizes=100)
    assert "  CUDA graphs         44.00 MiB  (41.80 MiB to 61.60 MiB)  for 100 sizes" in "\n".join(
        serving_lines(p)
    )


def test_an_empty_graph_takes_nothing() -> None:
    gpu, memory = graphs("1GiB")
    memory.add(1, 0, 0)
    assert gpu.dedicated_used_bytes == 0


def test_a_graph_for_which_there_is_no_room_changes_nothing() -> None:
    gpu, memory = graphs("3MiB")
    memory.add(1, 0, 7)
    for graph in (2, 3, 4):
        memory.add(graph, 0, 7)
    with pytest.raises(OutOfMemoryError):
        memory.add(5, 0, 7)
    assert gpu.dedicated_used_bytes == memory.taken[0] == 2 * MiB


def end_as(place: int, failing: int) -> None:
    if place == failing:
        sys.exit(3)
    if failing >= 0:
        time.sleep(600)


def test_processes_of_an_engine_end_with_the_one_that_fails() -> None:
    run_together("rank", 2, end_as, -1)
    with pytest.raises(SystemExit, match="rank 1 of 2 failed"):
        run_together("rank", 2, end_as, 1)
