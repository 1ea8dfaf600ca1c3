"""Reads the card of a vLLM worker. `serving.py` makes vLLM load this file in every worker."""

from __future__ import annotations

from typing import Any

import torch
from serving import Steps, figures, reading, watch_engine

STEPS = Steps()
watch_engine(STEPS)


class RankFigures:
    """Methods that vLLM adds to each of its workers; the engine calls them on all workers."""

    def read_card(self, step: str) -> None:
        """Reads this rank's card, and resets the peaks."""
        STEPS.readings[step] = reading()
        torch.cuda.reset_peak_memory_stats()

    def all_figures(self) -> dict[str, Any]:
        """Returns all readings in bytes, and vLLM's own figures."""
        return {"card": torch.cuda.get_device_name(), **figures(STEPS)}
