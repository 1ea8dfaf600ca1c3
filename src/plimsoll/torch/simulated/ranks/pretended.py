"""Whether a process is alone, and the rest of its job is pretended."""

from __future__ import annotations

import os


def pretended_world() -> int | None:
    """How many processes a job has of which this one alone runs; None where others run too."""
    world = os.environ.get("WORLD_SIZE", "")
    is_launched = "TORCHELASTIC_RUN_ID" in os.environ
    return int(world) if world.isdecimal() and int(world) > 1 and not is_launched else None
