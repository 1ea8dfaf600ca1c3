"""Recognises DataParallel, which uses more memory on the first card than on any other card."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.base.units import format_size
from plimsoll.recordings.causes.cause import Cause

if TYPE_CHECKING:
    from plimsoll.recordings.causes.cause import Facts

_LEAST_SHARE = 0.2


def data_parallel(facts: Facts) -> Cause | None:
    """Finds DataParallel, if other cards' peaks are at least a fifth below the first card's."""
    devices = facts.notes.devices
    others = [size for device, size in devices.items() if device != 0]
    if not others or not facts.is_live_under(_is_of_replicas).any():
        return None
    first, other = devices.get(0, 0), max(others)
    if first - other < _LEAST_SHARE * first:
        return None
    return Cause(
        name="data_parallel",
        sentence="DataParallel gathers outputs, and keeps gradients and optimizer state, on GPU 0: "
        f"{format_size(first)} there, {format_size(other)} on another GPU",
        change="use DistributedDataParallel, a process for each GPU",
        bytes=first - other,
    )


def _is_of_replicas(file: str, function: str) -> bool:
    """Returns whether a frame belongs to the forward pass of a DataParallel replica."""
    return file.endswith("torch/nn/parallel/parallel_apply.py") and function != "__init__"
