"""Behaviours of CUDA graphs and the memory they keep."""

from __future__ import annotations

from typing import Any

import torch

from tests.gpu.behaviours.behaviour import Observed, at_most, behaviour
from tests.gpu.behaviours.tools import MIB, empty, error_of, pool_bytes, result_of, room_for, stat


def capture(program: Any, pool: Any = None) -> tuple[Any, Any]:
    """Captures a graph of a program. Returns the graph, and the program's result."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        out = program()
    return graph, out


@behaviour()
def a_replay_computes_anew() -> Observed:
    static = torch.zeros(MIB, device="cuda")

    def program() -> Any:
        middle = static * 2
        again = middle + 1
        del middle
        return again.square()

    graph, out = capture(program)
    sums = []
    for value in (1.0, 2.0, 5.0):
        static.fill_(value)
        graph.replay()
        sums.append(out.sum().item())
    return {"sums": sums}


@behaviour()
def other_requests_do_not_touch_what_a_graph_remembers() -> Observed:
    static = torch.ones(4 * MIB, device="cuda")

    def program() -> Any:
        total = static
        for _ in range(6):  # makes temporary tensors, whose memory is free after the capture
            total = total * 2 + torch.ones_like(total)
        return total.sum()

    graph, out = capture(program)
    values = []
    for i in range(5):
        torch.cuda.empty_cache()
        others = [torch.full((4 * MIB,), float(j), device="cuda") for j in range(i + 8)]
        static.fill_(float(i))
        graph.replay()
        torch.cuda.synchronize()
        intact = all(bool((other == j).all().item()) for j, other in enumerate(others))
        values.append([out.item(), intact])
        del others
    return {"values": values}


@behaviour(elastic={"reserved": at_most})
def graphs_share_a_pool() -> Observed:
    static = torch.ones(8 * MIB, device="cuda")
    first, one = capture(lambda: (static * 2).relu())
    reserved_one = pool_bytes(first.pool(), "total_size")
    second, two = capture(lambda: (one + 3).relu(), pool=first.pool())
    third, three = capture(lambda: (two * 4).relu(), pool=first.pool())
    sums = []
    for value in (1.0, 2.0):
        static.fill_(value)
        for graph in (first, second, third):
            graph.replay()
        sums.append([tensor.sum().item() for tensor in (one, two, three)])
    return {
        "sums": sums,
        "same_pool": first.pool() == second.pool() == third.pool(),
        "allocated": pool_bytes(first.pool()),
        "reserved": [reserved_one, pool_bytes(first.pool(), "total_size")],
    }


@behaviour()
def a_handle_makes_a_pool() -> Observed:
    handle, other = torch.cuda.graph_pool_handle(), torch.cuda.graph_pool_handle()
    static = torch.ones(MIB, device="cuda")
    graph, out = capture(lambda: static + 1, pool=handle)
    graph.replay()
    return {
        "kind": [type(part).__name__ for part in handle],
        "distinct": handle != other,
        "is_used": tuple(graph.pool()) == tuple(handle),
        "allocated": pool_bytes(handle),
        "sum": out.sum().item(),
    }


@behaviour(elastic={"reserved": at_most})
def captured_memory_is_in_a_pool_of_its_own() -> Observed:
    torch.cuda.empty_cache()
    static = torch.ones(8 * MIB, device="cuda")
    before = torch.cuda.memory_allocated()
    graph, out = capture(lambda: static * 2)
    pool = graph.pool()
    inside = [torch.cuda.memory_allocated() - before, pool_bytes(pool)]
    reserved = pool_bytes(pool, "total_size")
    del out
    freed = [torch.cuda.memory_allocated() - before, pool_bytes(pool)]
    torch.cuda.empty_cache()
    kept = pool_bytes(pool, "total_size") > 0
    static.fill_(4.0)
    graph.replay()
    torch.cuda.synchronize()
    del graph
    torch.cuda.empty_cache()
    return {
        "inside": inside,
        "freed": freed,
        "kept_while_the_graph_lives": kept,
        "reserved": reserved,
        "gone": pool_bytes(pool, "total_size"),
    }


@behaviour()
def the_segments_of_a_capture_are_counted() -> Observed:
    names = ("segment.small_pool.current", "segment.large_pool.current")
    static = torch.zeros(128, device="cuda")
    # A capture first empties the cache. Empty the cache here too, so that the capture frees no
    # segment that `before` counts.
    torch.cuda.empty_cache()
    before = [stat(name) for name in names]
    graph, out = capture(lambda: static + torch.zeros(8 * MIB, device="cuda")[:128])
    during = [stat(name) for name in names]
    del graph, out
    torch.cuda.empty_cache()
    after = [stat(name) for name in names]
    return {
        "is_more": [b > a for a, b in zip(before, during, strict=True)],
        "is_back": after[1] == before[1],
    }


@behaviour()
def many_graphs_leave_nothing_behind() -> Observed:
    static = torch.ones(2 * MIB, device="cuda")
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    sums = []
    for i in range(30):
        graph, out = capture(lambda i=i: (static * i + 1).relu())
        graph.replay()
        sums.append(out.sum().item())
        del graph, out
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return {
        "sums": sums,
        "allocated_change": torch.cuda.memory_allocated() - before[0],
        "reserved_change": torch.cuda.memory_reserved() - before[1],
    }


@behaviour()
def results_outlive_their_graph() -> Observed:
    static = torch.ones(2 * MIB, device="cuda")
    graph, out = capture(lambda: static * 5)
    graph.replay()
    torch.cuda.synchronize()
    graph.reset()
    del graph
    torch.cuda.empty_cache()
    others = [torch.zeros(2 * MIB, device="cuda") for _ in range(8)]
    value = out.sum().item()
    before = torch.cuda.memory_allocated()
    del out
    return {"value": value, "freed": before - torch.cuda.memory_allocated(), "held": len(others)}


@behaviour()
def several_streams_are_captured() -> Observed:
    static, side = torch.ones(4 * MIB, device="cuda"), torch.cuda.Stream()

    def program() -> Any:
        first = static * 2
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            second = first + 1
            first.record_stream(side)
            third = second * 2
        torch.cuda.current_stream().wait_stream(side)
        del first
        return third + torch.full_like(static, 10.0)

    graph, out = capture(program)
    sums = []
    for value in (1.0, 3.0):
        static.fill_(value)
        graph.replay()
        sums.append(out.sum().item())
    return {"sums": sums}


@behaviour()
def graphed_callables_train_like_eager_ones() -> Observed:
    def train(*, graphed: bool) -> list[str]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 128)
        ).cuda()
        sample = torch.randn(64, 128, device="cuda")
        run = torch.cuda.make_graphed_callables(model, (sample,)) if graphed else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for step in range(8):
            torch.manual_seed(step)
            loss = run(torch.randn(64, 128, device="cuda")).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.item()).hex())
        return losses

    return {"eager": train(graphed=False), "graphed": train(graphed=True)}


@behaviour(own_process=True)
def a_capture_that_fails_can_be_followed_by_another() -> Observed:
    static = torch.ones(MIB, device="cuda")

    def bad() -> Any:
        return (static * 2).sum().item()

    error = error_of(lambda: capture(bad))

    def again() -> Any:
        graph, out = capture(lambda: static * 3)
        graph.replay()
        return out.sum().item()

    return {
        "error": error,
        "synchronized": result_of(torch.cuda.synchronize),
        "usable": result_of(lambda: empty(32 * MIB).fill_(1).sum().item()),
        "again": result_of(again),
    }


@behaviour(own_process=True)
def a_capture_can_run_out_of_memory() -> Observed:
    static = torch.ones(MIB, device="cuda")
    with room_for(64 * MIB):
        error = error_of(lambda: capture(lambda: (static * 2, empty(512 * MIB))))

    def again() -> Any:
        graph, out = capture(lambda: (static * 3, empty(512 * MIB)))
        graph.replay()
        return out[0].sum().item()

    return {
        "error": [error[0], error[1].partition(" GPU 0 ")[0]],
        "synchronized": result_of(torch.cuda.synchronize),
        "again": result_of(again),
    }
