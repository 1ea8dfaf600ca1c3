"""How a serving engine divides a card's memory, in the terms that serving engines use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Stage = Literal[
    "start", "weights", "profiling", "kv_cache", "warm_up", "capture", "load", "sleep", "wake_up"
]  # fmt: skip


@dataclass
class SleepUse:
    """The effect of a serving engine's sleep mode on the card, for one level of sleep.

    Attributes:
        level: The engine's number for how deep it sleeps; vLLM keeps a copy of the weights on the
            host at level 1, and nothing at level 2. None for SGLang, which has no levels.
        times: How often the engine slept at this level.
        freed_bytes: The memory of the card that the last sleep freed.
        unmapped_bytes: The part of `freed_bytes` that the engine maps again when it wakes; the rest
            was PyTorch's cache.
        left_bytes: The memory of the card that the engine's process still holds while it sleeps.
        host_bytes: The page-locked host memory that the last sleep allocated for copies of GPU
            memory. PyTorch rounds the size of each block up to a power of two.
        waking_bytes: The most memory of the card that waking took; None if the engine never woke.
        free_bytes: The card's free memory when the engine last woke; None if it never woke.
    """

    level: int | None
    times: int = 0
    freed_bytes: int = 0
    unmapped_bytes: int = 0
    left_bytes: int = 0
    host_bytes: int = 0
    waking_bytes: int | None = None
    free_bytes: int | None = None


@dataclass
class ServingUse:
    """How a serving engine divides a card's memory, by its own figures. Filled in while it starts.

    Attributes:
        engine: The engine's name and version.
        stage: The last stage that the engine reached. It begins with "start". In "weights" it loads
            the weights. "profiling" is the forward pass that measures activations. In "kv_cache" it
            allocates the cache. "warm_up" and "capture" (of CUDA graphs) follow. In "load" it
            serves requests. In "sleep" it frees memory, and in "wake_up" it takes memory again.
        failed_in: The stage in which the engine ran out of memory; None if it did not.
        refusal: The engine's message if it refuses to start for lack of memory; None if it starts.
        missing_bytes: If the engine refuses to start: the memory that it lacks. None if it starts,
            or does not say.
        fitting_len: If the engine refuses to start: the longest request, in tokens, for which the
            memory would suffice. None if the engine starts, or does not say.
        weights_bytes: Bytes of the model's weights.
        activation_bytes: The most memory that the forward pass of "profiling" adds to the weights.
        outside_bytes: The memory outside PyTorch's allocator at the end of "profiling".
        kv_cache_bytes: Bytes of the cache of keys and values.
        kv_tokens: The number of tokens that fit the cache; None for a model without a cache.
        graph_bytes: Bytes of the card's memory that the capture of CUDA graphs took; 0 without
            graphs.
        graph_range_bytes: The least and the most that `graph_bytes` may be, judged by graphs of
            other models; None without graphs.
        graph_sizes: The number of batch sizes for which graphs are captured.
        max_model_len: The longest request, in tokens.
        max_num_seqs: The most requests that the engine runs at the same time.
        max_num_batched_tokens: The most tokens of one step.
        utilization: The fraction of the card's memory that the engine plans to use.
        available_bytes: The card's free memory after the start; None if the engine does not say.
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
        """Makes an object from the result of `asdict`, which may have gone through JSON."""
        bounds = values["graph_range_bytes"]
        own = {
            "graph_range_bytes": bounds and (bounds[0], bounds[1]),
            "sleeps": [SleepUse(**each) for each in values["sleeps"]],
        }
        return cls(**{**values, **own})

    def sleep_of(self, level: int | None) -> SleepUse:
        """Returns the record of a level of sleep. Adds one if the level is new."""
        for each in self.sleeps:
            if each.level == level:
                return each
        self.sleeps.append(SleepUse(level))
        return self.sleeps[-1]

    @property
    def longest_requests(self) -> float | None:
        """Returns how many requests of `max_model_len` tokens fit the cache at the same time.

        Returns None if the size of the cache or `max_model_len` is unknown.
        """
        if not self.kv_tokens or not self.max_model_len:
            return None
        return self.kv_tokens / self.max_model_len
