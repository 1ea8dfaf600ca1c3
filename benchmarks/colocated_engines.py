"""The two engines of benchmarks/colocated.py: one trains a model, the other generates with it.

Their tensors lie in plimsoll's regions, named groups of memory that `plimsoll.pause` moves off the
card. So one engine can leave the card while the other works. The models are chains of square
matrices, since only memory is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import plimsoll
from plimsoll.base.units import MiB

if TYPE_CHECKING:
    import torch

WIDTH = 4096
BATCH = 64
PARAMETER_BYTES = 12  # a weight and both states of Adam, 4 bytes each
BUCKET_BYTES = 256 * MiB
# `digest` cuts a tensor into rows of this many words. It multiplies each word by a factor that
# depends on the word's column. The number of columns is prime, so two words whose distance is a
# power of two lie in different columns. If such words are swapped, the digest changes.
_WORDS = 251


@dataclass
class Moves:
    """Calls that pause or resume regions: how long each took, and how many bytes it moved."""

    seconds: list[float] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)

    def time(self, move: Callable[[], int]) -> None:
        """Waits for the GPU, then times `move`, which returns the bytes that it moved."""
        import torch

        torch.cuda.synchronize()
        began = time.perf_counter()
        self.moved.append(move())
        self.seconds.append(time.perf_counter() - began)


def digest(tensors: Sequence[torch.Tensor]) -> int:
    """Returns a digest of the tensors' contents: a weighted sum of their 32-bit words."""
    import torch

    weights = torch.arange(1, _WORDS + 1, device="cuda", dtype=torch.int64)
    total = torch.zeros((), device="cuda", dtype=torch.int64)
    for number, tensor in enumerate(tensors):
        words = tensor.detach().reshape(-1).view(torch.int32)
        rows = words[: words.numel() // _WORDS * _WORDS].view(-1, _WORDS)
        total += (number + 1) * (rows.sum(0, dtype=torch.int64) * weights).sum()
        total += words[rows.numel() :].sum(dtype=torch.int64)
    return int(total)


class Trainer:
    """A model with Adam's state, in the region "training"."""

    def __init__(self, layers: int) -> None:
        import torch

        with plimsoll.region("training"):
            self.model = torch.nn.Sequential(
                *(torch.nn.Linear(WIDTH, WIDTH, bias=False, device="cuda") for _ in range(layers))
            )
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.batch = torch.randn(BATCH, WIDTH, device="cuda")
        self.train()

    def train(self) -> None:
        """Trains a step."""
        self.model(self.batch).square().mean().backward()
        with plimsoll.region("training"):  # the first step creates Adam's state
            self.optimizer.step()
        self.optimizer.zero_grad()

    def tensors(self) -> list[torch.Tensor]:
        """Returns all tensors whose values must survive a pause."""
        state = self.optimizer.state.values()
        return [*self.model.parameters(), *(s[k] for s in state for k in ("exp_avg", "exp_avg_sq"))]

    def weights(self) -> list[torch.Tensor]:
        """Returns the model's weights, detached, so that the inference engine can copy them."""
        return [weight.detach() for weight in self.model.parameters()]

    def buckets(self, bucket: torch.Tensor) -> Iterator[list[int]]:
        """Copies the weights into the flat tensor `bucket`, part by part.

        Yields, after each part, the indices of the weights that the tensor now holds.
        """
        part: list[int] = []
        offset = 0
        for number, weight in enumerate(self.weights()):
            if offset + weight.numel() > bucket.numel():
                yield part
                part, offset = [], 0
            bucket[offset : offset + weight.numel()].copy_(weight.reshape(-1))
            offset += weight.numel()
            part.append(number)
        yield part


class Inference:
    """The trainer's model in half precision, with a cache and a CUDA graph.

    The graph runs the model, which fills the cache and reads it. The engine's memory lies in three
    regions: "weights", "kv-cache" and "graphs".
    """

    def __init__(self, layers: int, cache_bytes: int) -> None:
        import torch

        half = {"dtype": torch.bfloat16, "device": "cuda"}
        with plimsoll.region("weights"):
            self.weights = [torch.zeros(WIDTH, WIDTH, **half) for _ in range(layers)]
        with plimsoll.region("kv-cache"):
            rows = max(1, cache_bytes // (2 * WIDTH * BATCH))
            self.cache = torch.zeros(rows, BATCH, WIDTH, **half)
        self.prompt = torch.randn(BATCH, WIDTH, **half)
        self.run()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=plimsoll.graph_pool("graphs")):
            self.answer = self.run()

    def run(self) -> torch.Tensor:
        """Runs the model once. The CUDA graph is captured from a call of this function."""
        import torch

        hidden = self.prompt
        for number, weight in enumerate(self.weights):
            hidden = torch.tanh(hidden @ weight)
            self.cache[number % len(self.cache)].copy_(hidden)
        return hidden + self.cache[0]

    def generate(self) -> torch.Tensor:
        """Generates by replaying the graph."""
        self.graph.replay()
        return self.answer.clone()

    def is_right(self) -> bool:
        """Returns whether the graph's result equals a run without the graph."""
        import torch

        by_graph, without = self.generate().float(), self.run().float()
        return bool(torch.allclose(by_graph, without, rtol=0.05, atol=0.05))

    def load(self, weights: Sequence[torch.Tensor]) -> None:
        """Replaces the engine's weights by those of a trainer in this process."""
        for own, new in zip(self.weights, weights, strict=True):
            own.copy_(new)

    def load_bucket(self, bucket: torch.Tensor, part: Sequence[int]) -> None:
        """Replaces some of the engine's weights by those of a trainer in another process.

        Args:
            bucket: A flat tensor. The other process copied the new weights into it, one by one.
            part: For each weight in `bucket`, its index in `self.weights`.
        """
        offset = 0
        for number in part:
            own = self.weights[number]
            own.copy_(bucket[offset : offset + own.numel()].view_as(own))
            offset += own.numel()


def layers_for(size: int) -> int:
    """Returns the number of layers of a trainer that takes `size` bytes."""
    return max(1, size // (PARAMETER_BYTES * WIDTH * WIDTH))
