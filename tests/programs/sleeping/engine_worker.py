"""A stand-in for vLLM's worker; its memory pools can leave the card ("sleep") and come back.

The test imports this file as `vllm.v1.worker.gpu_worker`. A program makes a worker, lets it sleep
and wakes it.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from tests.programs.sleeping.pool import CACHE, MIB, WEIGHT_MIB, WEIGHTS, SleepingPools

_TAGS = {"weights": WEIGHTS, "kv_cache": CACHE}


class Worker:
    """Makes weights and a cache, each in its own pool."""

    def load_model(self) -> None:
        """Does nothing. vLLM calls this method, under three names, when an engine starts."""

    determine_available_memory = initialize_from_config = load_model

    def compile_or_warm_up_model(self) -> None:
        """Makes the pools. vLLM calls this method last when an engine starts."""
        self.pools = SleepingPools(os.environ["SLEEPING_LIBRARY"])
        with self.pools.use(WEIGHTS):
            self.weights = [_memory(size) for size in WEIGHT_MIB]
        with self.pools.use(CACHE):
            self.cache = _memory(700)

    def sleep(self, level: int = 1) -> None:
        """Puts the pools to sleep: level 1 keeps the weights, level 2 keeps nothing."""
        self.pools.sleep(WEIGHTS if level == 1 else None)

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Maps the memory of these tags again; None means all tags."""
        self.pools.wake(*(_TAGS[tag] for tag in tags or _TAGS))


def _memory(mib: int) -> Any:
    return torch.zeros(mib * MIB, dtype=torch.uint8, device="cuda")
