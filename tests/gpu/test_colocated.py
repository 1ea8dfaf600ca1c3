"""Tests that programs on a real GPU pause regions of memory to make room for each other.

Such programs are, for example, a trainer and an inference engine that share a card.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

import plimsoll
from plimsoll import InputError
from plimsoll.engine.current import engine_of
from tests.apart import in_a_process

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU"),
]

MIB = 1 << 20
SECONDS = 120


def full(mib: int, value: int, region: str = "") -> Any:
    with plimsoll.region(region):
        return torch.full((mib * MIB,), value, dtype=torch.uint8, device="cuda")


def holds(tensor: Any, value: int) -> bool:
    # amin and amax need almost no memory. A comparison would need a tensor for its result.
    return int(tensor.amin()) == value == int(tensor.amax())


@pytest.mark.alone
@in_a_process
def test_several_regions_leave_and_come_back_with_their_values() -> None:
    plimsoll.install()
    weights, cache = full(300, 1, "weights"), full(200, 2, "kv-cache")
    addresses = weights.data_ptr(), cache.data_ptr()
    for _ in range(3):
        free = torch.cuda.mem_get_info()[0]
        assert plimsoll.pause("weights", "kv-cache") >= 500 * MIB
        assert torch.cuda.mem_get_info()[0] - free >= 490 * MIB
        plimsoll.resume("weights")
        assert holds(weights, 1)
        plimsoll.resume("kv-cache")
        assert holds(cache, 2)
        assert (weights.data_ptr(), cache.data_ptr()) == addresses


@in_a_process
def test_a_resume_without_room_for_all_leaves_all_paused_with_their_values() -> None:
    plimsoll.install(dedicated="1GiB")
    weights, cache = full(200, 1, "weights"), full(700, 2, "kv-cache")
    plimsoll.pause("weights", "kv-cache")
    wall = full(500, 3)
    for _ in range(2):
        with pytest.raises(plimsoll.OutOfMemoryError, match="kv-cache"):
            plimsoll.resume("weights", "kv-cache")
        assert plimsoll.is_paused("weights")
        assert plimsoll.is_paused("kv-cache")
    assert holds(wall, 3)
    del wall
    plimsoll.resume("weights", "kv-cache")
    assert holds(weights, 1)
    assert holds(cache, 2)
    engine_of().check_invariants()


@pytest.mark.alone
@in_a_process
def test_graphs_that_were_captured_into_a_region_replay_right_after_it() -> None:
    plimsoll.install()
    weights = full(64, 3, "weights")
    source = torch.zeros(64 * MIB, dtype=torch.uint8, device="cuda")
    pool = plimsoll.graph_pool("graphs")
    graphs = []
    for factor in (1, 2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            temporary = source * factor
            result = temporary + weights
            del temporary
        graphs.append((graph, result, factor))
    addresses = [result.data_ptr() for _, result, _ in graphs]
    for value in range(1, 4):
        free = torch.cuda.mem_get_info()[0]
        assert plimsoll.pause("weights", "graphs") >= 192 * MIB
        assert torch.cuda.mem_get_info()[0] - free >= 190 * MIB
        others = full(400, 9)
        del others
        torch.cuda.empty_cache()
        plimsoll.resume("weights", "graphs")
        torch.cuda.empty_cache()
        assert [result.data_ptr() for _, result, _ in graphs] == addresses
        for graph, result, factor in graphs:
            source.fill_(value)
            graph.replay()
            assert holds(result, value * factor + 3)
    del graphs, graph, result
    gc.collect()
    torch.cuda.empty_cache()
    engine_of().check_invariants()


@in_a_process
def test_in_the_middle_of_a_capture_nothing_is_paused_or_resumed() -> None:
    plimsoll.install()
    weights, cache = full(10, 1, "weights"), full(20, 2, "kv-cache")
    result = torch.zeros(10 * MIB, dtype=torch.uint8, device="cuda")
    plimsoll.pause("kv-cache")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(InputError, match="while a graph is being captured"):
            plimsoll.pause("weights")
        with pytest.raises(InputError, match="while a graph is being captured"):
            plimsoll.resume("kv-cache")
        torch.add(weights, 1, out=result)
    graph.replay()
    assert holds(result, 2)
    plimsoll.resume("kv-cache")
    assert holds(cache, 2)


@in_a_process
def test_a_pause_waits_for_what_other_streams_still_do() -> None:
    plimsoll.install()
    weights = full(256, 0, "weights")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(100):
            weights.add_(1)
    plimsoll.pause("weights")
    plimsoll.resume("weights")
    assert holds(weights, 100)


@in_a_process
def test_page_locked_memory_is_kept_for_the_next_pause_until_somebody_asks() -> None:
    plimsoll.install()
    weights = full(100, 4, "weights")
    plimsoll.pause("weights")
    plimsoll.resume("weights")
    assert engine_of().host_reserved_bytes() == 100 * MIB
    newer = getattr(torch.accelerator, "empty_host_cache", None)
    (newer or torch._C._host_emptyCache)()
    assert engine_of().host_reserved_bytes() == 0
    plimsoll.pause("weights")
    plimsoll.resume("weights")
    assert holds(weights, 4)


class Other:
    """A second process that answers requests."""

    def __init__(self, serve: Callable[[Any, Any], None]) -> None:
        from torch import multiprocessing

        context = multiprocessing.get_context("spawn")
        self._requests, self._answers = context.Queue(), context.Queue()
        self._process = context.Process(target=serve, args=(self._requests, self._answers))
        self._process.start()

    def ask(self, request: Any) -> Any:
        """Waits for all queued work, sends a request and returns the answer."""
        torch.cuda.synchronize()
        self._requests.put(request)
        return self._answers.get(timeout=SECONDS)

    def ends(self) -> bool:
        """Returns whether the process ends by itself with status 0."""
        self._process.join(SECONDS)
        return bool(self._process.exitcode == 0)


def infer(requests: Any, answers: Any) -> None:
    """Acts as the inference engine: loads, pauses and resumes weights when the parent asks."""
    plimsoll.install()
    weights = full(200, 0, "weights")
    bucket = requests.get()
    answers.put("ready")
    while (request := requests.get()) != "end":
        if request == "load":
            for part in weights.view(-1, bucket.numel()):
                part.copy_(bucket)
        elif request == "pause":
            plimsoll.pause("weights")
        elif request == "resume":
            plimsoll.resume("weights")
        torch.cuda.synchronize()
        known = not plimsoll.is_paused("weights")
        answers.put((int(weights[0]), int(weights[-1])) if known else None)
    del bucket
    gc.collect()
    answers.put(engine_of().host_reserved_bytes())


@in_a_process
def test_weights_go_from_one_process_to_the_other_while_both_take_turns() -> None:
    plimsoll.install()
    training = full(300, 0, "training")
    bucket = full(20, 0)
    inference = Other(infer)
    assert inference.ask(bucket) == "ready"
    for value in range(1, 5):
        assert inference.ask("pause") is None
        training.fill_(value)
        bucket.copy_(training[: bucket.numel()])
        assert inference.ask("resume") == (value - 1, value - 1)
        assert inference.ask("load") == (value, value)
        plimsoll.pause("training")
        assert inference.ask("look") == (value, value)
        plimsoll.resume("training")
        assert holds(training, value)
    assert inference.ask("end") == 200 * MIB
    assert inference.ends()


def look(requests: Any, answers: Any) -> None:
    """Receives a tensor from the parent, and holds it until the parent asks for its release."""
    plimsoll.install()
    tensor = requests.get()
    answers.put(int(tensor[-1]))
    requests.get()
    del tensor
    gc.collect()
    torch.cuda.synchronize()
    answers.put("gone")


@in_a_process
def test_memory_that_another_process_has_is_not_paused() -> None:
    plimsoll.install()
    kept, sent = full(50, 5, "weights"), full(20, 7, "weights")
    cache = full(30, 9, "kv-cache")
    looking = Other(look)
    assert looking.ask(sent) == 7
    with pytest.raises(InputError, match="sent to other processes"):
        plimsoll.pause("kv-cache", "weights", backup="drop")
    assert not plimsoll.is_paused("weights")
    assert holds(sent, 7)
    assert holds(cache, 9)
    assert looking.ask("let go") == "gone"
    assert looking.ends()
    del sent
    gc.collect()
    torch.cuda.ipc_collect()
    assert plimsoll.pause("weights") >= 50 * MIB
    plimsoll.resume("weights")
    assert holds(kept, 5)
