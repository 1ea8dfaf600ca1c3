"""How a serving engine divides its card, in the terms of such engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Stage = Literal["start", "weights", "profiling", "kv_cache", "warm_up", "capture", "load"]


@dataclass
class ServingUse:
    """How a serving engine divides its card, by its own figures. Filled in while it starts.

    Attributes:
        engine: The engine's name and version.
        stage: The last stage that it reached. "start" comes first. "weights" loads them.
            "profiling" is the forward pass that measures activations. "kv_cache" makes the cache.
            "warm_up" and "capture", of CUDA graphs, follow. "load" serves requests.
        failed_in: The stage in which it ran out of memory; None if it did not.
        refusal: Its own reason for refusing to start for lack of memory; None if it starts.
        missing_bytes: The memory that it then lacks; None if it does not say.
        fitting_len: The longest request for which there is enough; None if it does not say.
        weights_bytes: Bytes of the model's weights.
        activation_bytes: The most further memory of the forward pass in the profiling step.
        outside_bytes: The memory taken outside PyTorch by the end of that pass.
        kv_cache_bytes: Bytes of the cache of keys and values.
        kv_tokens: The tokens that it holds; None for a model without a cache.
        graph_bytes: The memory of the card that capturing CUDA graphs took; 0 without graphs.
        graph_range_bytes: The least and the most that this may be, from graphs of other models;
            None without graphs.
        graph_sizes: How many batch sizes have captured graphs.
        max_model_len: The longest request, in tokens.
        max_num_seqs: The most requests that run at once.
        max_num_batched_tokens: The most tokens of one step.
        utilization: The part of the card that it plans to use.
        available_bytes: The free memory of the card after its start; None if it does not say.
    """

    engine: str
    stage: Stage = "start"
    failed_in: Stage | None = None
    refusal: str | None = None
    missing_bytes: int | None = None
    fitting_len: int | None = None
    weights_bytes: int | None = None
    activation_bytes: int | None = None
    outside_bytes: int | None = None
    kv_cache_bytes: int | None = None
    kv_tokens: int | None = None
    graph_bytes: int | None = None
    graph_range_bytes: tuple[int, int] | None = None
    graph_sizes: int = 0
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    utilization: float | None = None
    available_bytes: int | None = None

    @property
    def longest_requests(self) -> float | None:
        """Returns how many requests of the greatest length the cache holds at once."""
        if not self.kv_tokens or not self.max_model_len:
            return None
        return self.kv_tokens / self.max_model_len
