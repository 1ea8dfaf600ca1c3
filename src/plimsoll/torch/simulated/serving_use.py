"""How a serving engine divides its card, in the terms of such engines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Stage = Literal[
    "start", "weights", "profiling", "kv_cache", "warm_up", "capture", "load", "sleep", "wake_up"
]  # fmt: skip


@dataclass
class SleepUse:
    """The effect of an engine's sleep of one level on its card.

    Attributes:
        level: The engine's number for how deep it sleeps; vLLM keeps a copy of the weights on the
            host at level 1, and nothing at level 2.
        times: How often it slept so.
        freed_bytes: The memory of the card that the last sleep freed.
        unmapped_bytes: The part of it that waking takes again; the rest was PyTorch's cache.
        left_bytes: The memory of the card that its process still has asleep.
        host_bytes: Page-locked host memory that its copies take, in blocks of powers of two.
        waking_bytes: The most memory of the card that waking took; None if it never woke.
        free_bytes: The card's free memory when it last woke; None if it never woke.
    """

    level: int
    times: int = 0
    freed_bytes: int = 0
    unmapped_bytes: int = 0
    left_bytes: int = 0
    host_bytes: int = 0
    waking_bytes: int | None = None
    free_bytes: int | None = None


@dataclass
class ServingUse:
    """How a serving engine divides its card, by its own figures. Filled in while it starts.

    Attributes:
        engine: The engine's name and version.
        stage: The last stage that it reached. "start" comes first. "weights" loads them.
            "profiling" is the forward pass that measures activations. "kv_cache" makes the cache.
            "warm_up" and "capture", of CUDA graphs, follow. "load" serves requests. "sleep" frees
            memory, and "wake_up" takes it again.
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
        sleeps: The effect of each level of sleep, in the order of their first use.
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
    sleeps: list[SleepUse] = field(default_factory=list)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ServingUse:
        """Returns the inverse of `asdict`, also of its JSON."""
        bounds = values["graph_range_bytes"]
        own = {
            "graph_range_bytes": bounds and (bounds[0], bounds[1]),
            "sleeps": [SleepUse(**each) for each in values["sleeps"]],
        }
        return cls(**{**values, **own})

    def sleep_of(self, level: int) -> SleepUse:
        """Returns what a level of sleep did so far."""
        for each in self.sleeps:
            if each.level == level:
                return each
        self.sleeps.append(SleepUse(level))
        return self.sleeps[-1]

    @property
    def longest_requests(self) -> float | None:
        """Returns how many requests of the greatest length the cache holds at once."""
        if not self.kv_tokens or not self.max_model_len:
            return None
        return self.kv_tokens / self.max_model_len
