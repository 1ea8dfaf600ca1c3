"""Each of vLLM's workers reads its own card: `serving.py` has vLLM load this file in each."""

from __future__ import annotations

from typing import Any

import torch
from serving import Steps, figures, reading, watch_engine

STEPS = Steps()
watch_engine(STEPS)


class RankFigures:
    """Methods that each of vLLM's workers gets; the engine calls them on all of them."""

    def read_card(self, step: str) -> None:
        """Read the card of this rank, and begin its peaks anew."""
        STEPS.readings[step] = reading()
        torch.cuda.reset_peak_memory_stats()

    def all_figures(self) -> dict[str, Any]:
        """Return what was read, in bytes, and vLLM's own figures."""
        return {"card": torch.cuda.get_device_name(), **figures(STEPS)}
