"""Serves a small model as serving engines do.

Run it as `python serving_engine.py KIND UTILIZATION`. KIND says in which process the engine runs:

- `same`: in this process;
- `spawn`: in a new process;
- `TERM`, `KILL`: in a new process that is ended with SIGTERM or SIGKILL.

UTILIZATION is the share of the card that the engine may take. The program prints its figures in
bytes, as JSON.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from typing import Any

import pynvml  # type: ignore[import-untyped]
import torch
from torch.nn import functional

LAYERS, WIDTH, HEADS, KEY_HEADS, VOCABULARY = 4, 512, 8, 2, 32_000
HEAD = WIDTH // HEADS
PAGE = 16
"""Tokens in a page of the cache."""
MOST_TOKENS, MOST_PAGES = 2048, 16
"""Tokens of a profiling pass, and the most pages of a request."""
BATCHES = (1, 2, 4, 8, 16)
PAGE_BYTES = LAYERS * 2 * PAGE * KEY_HEADS * HEAD * 2


class Model:
    """A decoder. All requests share one cache of keys and values, which is divided into pages."""

    def __init__(self) -> None:
        def weight(*shape: int) -> torch.Tensor:
            return torch.randn(shape, device="cuda", dtype=torch.bfloat16) * 0.02

        self.words = weight(VOCABULARY, WIDTH)
        self.layers = [
            (
                weight(WIDTH, WIDTH + 2 * KEY_HEADS * HEAD),
                weight(WIDTH, WIDTH),
                weight(WIDTH, 4 * WIDTH),
                weight(4 * WIDTH, WIDTH),
            )
            for _ in range(LAYERS)
        ]

    def forward(
        self, tokens: torch.Tensor, caches: list[torch.Tensor] | None, pages: torch.Tensor
    ) -> torch.Tensor:
        """Returns the next token of each request. All requests bring the same number of new tokens.

        Args:
            tokens: Ids of the new tokens, in the shape (requests, new tokens per request).
            caches: For each layer, the keys and values of all pages; None while profiling.
            pages: A row of page numbers per request. New keys and values go to a row's first page.
        """
        hidden = self.words[tokens]
        count, rows = tokens.shape
        for number, (joint, out, wide, narrow) in enumerate(self.layers):
            parts = (functional.rms_norm(hidden, (WIDTH,)) @ joint).split(HEAD, -1)
            query = torch.stack(parts[:HEADS], 1)
            keys, values = (
                torch.stack(parts[first : first + KEY_HEADS], 2)
                for first in (HEADS, HEADS + KEY_HEADS)
            )
            if caches is not None:
                cache = caches[number]
                first = min(rows, PAGE)
                cache[0, pages[:, 0], :first] = keys[:, :first]
                cache[1, pages[:, 0], :first] = values[:, :first]
                keys, values = (cache[each, pages].flatten(1, 2) for each in range(2))
            seen = functional.scaled_dot_product_attention(
                query, keys.transpose(1, 2), values.transpose(1, 2), enable_gqa=True
            )
            hidden = hidden + seen.transpose(1, 2).reshape(count, rows, WIDTH) @ out
            hidden = hidden + functional.silu(functional.rms_norm(hidden, (WIDTH,)) @ wide) @ narrow
        logits = hidden[:, -1] @ self.words.t()
        return logits.float().softmax(-1).multinomial(1)


class Engine:
    """The model with its cache, its CUDA graphs, and the page tables that the host writes."""

    def __init__(self, utilization: float) -> None:
        self.model = Model()
        torch.cuda.memory._set_allocator_settings("max_split_size_mb:256")
        weights = torch.cuda.memory_allocated()
        tokens = torch.zeros(1, MOST_TOKENS, dtype=torch.int64, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        self.model.forward(tokens, None, tokens)
        peak = torch.cuda.max_memory_allocated()
        del tokens
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        outside = total - free - torch.cuda.memory_reserved()
        room = int(total * utilization) - peak - outside
        pages = room // PAGE_BYTES
        shape = (2, pages, PAGE, KEY_HEADS, HEAD)
        self.caches = [
            torch.zeros(shape, dtype=torch.bfloat16, device="cuda") for _ in range(LAYERS)
        ]
        # The page tables are in page-locked host memory, where the GPU reads them.
        self.table = torch.zeros(BATCHES[-1], MOST_PAGES, dtype=torch.int64, pin_memory=True)
        self.mapped = torch.ops.plimsoll.map_host(self.table)
        self.tokens = torch.zeros(BATCHES[-1], 1, dtype=torch.int64, device="cuda")
        self.pages, self.free = pages, list(range(pages))
        before = torch.cuda.memory_reserved()
        self.graphs = self.capture()
        self.figures = {
            "total": total,
            "weights": weights,
            "peak": peak,
            "outside": outside,
            "cache": pages * PAGE_BYTES,
            "graphs": torch.cuda.memory_reserved() - before,
        }

    def capture(self) -> dict[int, tuple[torch.cuda.CUDAGraph, torch.Tensor]]:
        """Returns each batch size's graph and its result tensor; all graphs share one pool."""
        pool, graphs = torch.cuda.graph_pool_handle(), {}
        for batch in reversed(BATCHES):
            self.step(batch)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                made = self.step(batch)
            # Keep the result without owning its memory, so that later graphs can reuse this memory.
            graphs[batch] = graph, torch.ops.plimsoll.unowned(made)
            del made
        return graphs

    def step(self, batch: int) -> torch.Tensor:
        """Returns the next token of `batch` requests."""
        return self.model.forward(self.tokens[:batch], self.caches, self.mapped[:batch])

    def serve(self, lengths: list[int]) -> list[int]:
        """Serves requests, each with a prompt of one page. Returns how many tokens each one got."""
        waiting, served = list(enumerate(lengths)), [0] * len(lengths)
        while waiting:
            batch = next(size for size in BATCHES if size >= min(len(waiting), BATCHES[-1]))
            running, waiting = waiting[:batch], waiting[batch:]
            taken = [[self.free.pop() for _ in range(MOST_PAGES)] for _ in running]
            self.table[: len(running)] = torch.tensor(taken)
            prompts = torch.ones(len(running), PAGE, dtype=torch.int64, device="cuda")
            self.model.forward(prompts, self.caches, self.mapped[: len(running)])
            graph, result = self.graphs[batch]
            for _ in range(max(length for _, length in running)):
                graph.replay()
                tokens = result.cpu()
                assert tokens.shape == (batch, 1)
                self.tokens[:batch] = result
            for (request, length), pages in zip(running, taken, strict=True):
                served[request] = length
                self.free += pages
        assert len(self.free) == self.pages
        return served


@torch.inference_mode()  # type: ignore[untyped-decorator]
def run(utilization: float, answer: Any) -> None:
    """Serves, and sends the figures."""
    engine = Engine(utilization)
    assert engine.serve([5, 9, 3] * 7) == [5, 9, 3] * 7
    answer(engine.figures)


def run_in_a_process(utilization: float, answers: Any, kind: str) -> None:
    """Calls `run`, in a new process. For the kinds TERM and KILL, it then waits for that signal."""
    run(utilization, answers.send)
    if kind != "spawn":
        signal.pause()


def main() -> None:
    """Runs the command line."""
    kind, utilization = sys.argv[1], float(sys.argv[2])
    pynvml.nvmlInit()  # the front ends of serving engines ask NVML for the card's size
    card = pynvml.nvmlDeviceGetHandleByIndex(0)
    total = pynvml.nvmlDeviceGetMemoryInfo(card).total
    if kind == "same":
        found: list[dict[str, int]] = []
        run(utilization, found.append)
        (figures,) = found
    else:
        context = multiprocessing.get_context("spawn")
        receiver, sender = context.Pipe(duplex=False)
        worker = context.Process(target=run_in_a_process, args=(utilization, sender, kind))
        worker.start()
        sender.close()
        figures = receiver.recv()  # raises EOFError if the worker fails
        if kind != "spawn":
            assert worker.pid is not None
            os.kill(worker.pid, getattr(signal, f"SIG{kind}"))
        worker.join()
    assert figures["total"] == total
    print("figures:", json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
