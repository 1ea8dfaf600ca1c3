"""Recognises the logits of a large vocabulary, and the loss's copies of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from plimsoll.base.units import format_count, format_size
from plimsoll.recordings.causes.cause import Cause
from plimsoll.recordings.causes.wording import subject

if TYPE_CHECKING:
    from plimsoll.recordings.causes.cause import Facts

_LEAST_SHARE = 0.3
_FEWEST, _MOST = 2, 8
"""The fewest and the most tensors at the peak that can be the logits and the loss's copies.

These tensors are the logits in two types, their logarithms, and gradients.
"""
_LOSSES = ("cross_entropy", "nll_loss")


def logits(facts: Facts) -> Cause | None:
    """Finds the logits and the loss's copies of them, if they are 30 % of the peak or more.

    These are the tensors that have the size of the loss's largest tensor, or half that size.
    Parameters, gradients and optimizer state do not count.
    """
    of_loss = facts.live[facts.is_live_under(_computes_loss)]
    if not len(of_loss):
        return None
    sizes = facts.blocks.size
    full = int(sizes[of_loss].max())
    others = np.setdiff1d(facts.live, facts.live_of("parameters", "gradients", "optimizer_state"))
    like = others[np.isin(sizes[others], (full, full // 2))]
    size = facts.bytes_of(like)
    if size < _LEAST_SHARE * facts.allocated_bytes or not _FEWEST <= len(like) <= _MOST:
        return None
    line = facts.line_of_most(of_loss)
    return Cause(
        name="logits",
        sentence=f"logits and loss at {subject(line)} take {format_size(size)} in "
        f"{format_count(len(like), 'tensor')} of up to {format_size(full)}",
        change="compute the loss in parts of the batch, and do not convert all logits to float32",
        bytes=size,
        line=line,
    )


def _computes_loss(file: str, function: str) -> bool:
    return file.endswith("torch/nn/functional.py") and function in _LOSSES
