"""Recognises a loaded checkpoint that stays on the card after its weights were copied."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from plimsoll.base.units import format_size
from plimsoll.recordings.causes.cause import Cause
from plimsoll.recordings.causes.wording import subject

if TYPE_CHECKING:
    from plimsoll.recordings.causes.cause import Facts

_LEAST_SHARE = 0.05
_IN_USE = ("parameters", "optimizer_state", "gradients")


def loaded_checkpoint(facts: Facts) -> Cause | None:
    """Finds loaded tensors outside modules and optimizers, if they are 5 % of the peak or more."""
    loaded = facts.live[facts.is_live_under(loads)]
    spare = np.setdiff1d(loaded, facts.live_of(*_IN_USE))
    size = facts.bytes_of(spare)
    copies = np.setdiff1d(facts.live_of(*_IN_USE), loaded)
    has_copy = np.isin(facts.blocks.size[spare], facts.blocks.size[copies])
    # A loaded block has a copy if a block in use has the same size. If at most half of the loaded
    # bytes have a copy, the loaded blocks are data, or weights that the program has not copied.
    if 2 * facts.bytes_of(spare[has_copy]) <= size:
        return None
    if size < _LEAST_SHARE * facts.allocated_bytes:
        return None
    line = facts.line_of_most(spare)
    return Cause(
        name="loaded_checkpoint",
        sentence=f"the checkpoint that {subject(line)} loads stays on the card, "
        f"{format_size(size)}",
        change='load it with map_location="cpu", or `del` it once it is copied',
        bytes=size,
        line=line,
        patch='torch.load(path, map_location="cpu")',
    )


def loads(file: str, function: str) -> bool:
    """Returns whether a function reads a checkpoint."""
    return (file.endswith("torch/serialization.py") and "load" in function) or (
        file.endswith("safetensors/torch.py") and function == "load_file"
    )
