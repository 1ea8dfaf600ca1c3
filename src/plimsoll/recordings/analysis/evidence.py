"""Collects what a recording says about each block; `categories` draws the conclusions.

There are three sources. The frames of a call stack show which part of PyTorch requested the block.
A frame that plimsoll adds tells the pass and whether autograd was recording
(`plimsoll.recordings.origin`). Labels tell what PyTorch reported, while the program ran, about the
use of an address.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from plimsoll.recordings.origin import ROLES, Origin, origin_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from plimsoll.recordings.analysis.lifetimes import Lifetimes
    from plimsoll.recordings.events import Frame
    from plimsoll.recordings.label import Label


class Place(IntEnum):
    """The part of a program that requested memory."""

    PROGRAM = 0
    """Code outside all modules, such as the loop over batches, or a loss function."""
    BUILD = 1
    """Code that makes, moves or gathers parameters."""
    FORWARD = 2
    """The call of a module."""
    RECOMPUTED = 3
    """The repeated call of a module in the backward pass: activation checkpointing."""
    BACKWARD = 4
    OPTIMIZER = 5
    COLLECTIVE = 6
    """PyTorch's distributed package, for data that ranks exchange."""


_BUILDS = re.compile(
    r"nn/(init|parameter)\.py|nn/utils/parametriz|distributed/fsdp/(_fully_shard/_fsdp_param|_flat_param)\.py"
)
_MODULE_BUILDS = ("_apply", "convert", "__init__", "reset_parameters")
_COLLECTIVES = re.compile(
    r"distributed/(distributed_c10d|_functional_collectives|utils|tensor/_(collective_utils|redistribute))\.py"
    r"|distributed/(fsdp|algorithms|_composable|pipelining)/|nn/parallel/(distributed|comm)\.py"
)
_BACKWARD_CALLS = ("backward", "grad", "_engine_run_backward")
_RECOMPUTES = ("unpack_hook", "recompute_fn", "backward")


def place_of(frames: Sequence[Frame], origin: Origin | None) -> Place:
    """Returns the part of the program that a stack, innermost frame first, belongs to."""
    shown = _shown(frames)
    if origin is None:
        return shown
    if origin.phase == "forward":
        return Place.PROGRAM if shown == Place.BACKWARD else shown
    if shown == Place.RECOMPUTED:
        # A module's recomputation and the backward pass after it have the same kind of stack, but
        # only the recomputation records a graph.
        return shown if origin.keeps_graph else Place.BACKWARD
    return shown if shown == Place.COLLECTIVE else Place.BACKWARD


def _shown(frames: Sequence[Frame]) -> Place:
    """Finds the `Place` of a stack by its frames of PyTorch; BACKWARD for an empty stack.

    The innermost frame that `_told_by` recognizes decides, with a few exceptions.
    """
    found: Place | None = None
    in_program = False
    for filename, line, function in frames:
        path = filename.replace("\\", "/").rpartition("/torch/")[2]
        if path == filename:
            in_program |= line > 0
            continue
        if path == "utils/checkpoint.py" and function in _RECOMPUTES:
            return Place.RECOMPUTED if found in (None, Place.FORWARD) else found
        if found is None:
            found = _told_by(path, function)
            if found == Place.OPTIMIZER and in_program and function == "step":
                return Place.PROGRAM  # the optimizer's step() has called the program's closure
        elif found != Place.FORWARD:
            return found
    return found if found is not None else Place.PROGRAM if in_program else Place.BACKWARD


def _told_by(path: str, function: str) -> Place | None:
    """Returns the place that a frame of PyTorch shows, or None; `path` is relative to torch/."""
    if path.startswith(("optim/", "distributed/optim/")):
        return Place.OPTIMIZER
    if _BUILDS.match(path):
        return Place.BUILD
    if path.startswith("nn/modules/"):
        if function in _MODULE_BUILDS:
            return Place.BUILD
        if function == "_call_impl":
            return Place.FORWARD
    if path.startswith("autograd/") and function in _BACKWARD_CALLS:
        return Place.BACKWARD
    return Place.COLLECTIVE if _COLLECTIVES.match(path) else None


@dataclass(frozen=True)
class Evidence:
    """The facts about blocks. Each column has one entry for each block.

    Attributes:
        place: A `Place`. uint8.
        role: An index into `plimsoll.recordings.origin.ROLES`; -1 if unknown. int8.
        records: Whether autograd was recording: 1 or 0; -1 if unknown. int8.
        names_cache: Whether a file or function of the requesting code is named after a cache. bool.
        names_kv: Whether such a file or function is named after a cache of keys and values. bool.
        label: The category that the block's label names, as an index into `categories`; -1 without
            a label. int16.
        has_origins: Whether plimsoll recorded the stacks.
    """

    place: NDArray[np.uint8]
    role: NDArray[np.int8]
    records: NDArray[np.int8]
    names_cache: NDArray[np.bool_]
    names_kv: NDArray[np.bool_]
    label: NDArray[np.int16]
    has_origins: bool

    @property
    def is_from_program(self) -> bool:
        """Whether the running program reported facts besides its call stacks."""
        return self.has_origins or bool((self.label >= 0).any())


def find_evidence(
    lifetimes: Lifetimes,
    frames: Callable[[int], list[Frame]],
    labels: Sequence[Label],
    categories: Sequence[str],
) -> Evidence:
    """Collects the known facts about each block.

    Args:
        lifetimes: The blocks.
        frames: A function that returns the frames of a stack, given its number.
        labels: For addresses on this device, the use that PyTorch reported while the program ran.
        categories: The names that a label's category can have. `Evidence.label` is an index into
            them.
    """
    numbers, which = np.unique(lifetimes.stack, return_inverse=True)
    stacks = [frames(int(number)) for number in numbers]
    origins = [origin_of(stack) for stack in stacks]

    pairs = list(zip(stacks, origins, strict=True))
    place = [place_of(*pair) for pair in pairs]
    role = [-1 if o is None or o.role is None else ROLES.index(o.role) for o in origins]
    records = [-1 if o is None else int(o.keeps_graph) for o in origins]
    return Evidence(
        place=np.array(place, dtype=np.uint8)[which],
        role=np.array(role, dtype=np.int8)[which],
        records=np.array(records, dtype=np.int8)[which],
        names_cache=np.array([_names(_CACHE, s) for s in stacks], dtype=np.bool_)[which],
        names_kv=np.array([_names(_KV, stack) for stack in stacks], dtype=np.bool_)[which],
        label=_label_of(lifetimes, labels, categories),
        has_origins=any(origin is not None for origin in origins),
    )


_CACHE = re.compile(r"cache(?!d_property)|past|(^|[_ ])kv([_. ]|$)", re.IGNORECASE)
_KV = re.compile(r"(^|[_ ])kv_?(cache|pool)|KV(Cache|Pool)", re.IGNORECASE)
_MOST_CALLERS = 3


def _names(pattern: re.Pattern[str], frames: Sequence[Frame]) -> bool:
    """Returns whether a pattern matches a caller of PyTorch.

    Only the `_MOST_CALLERS` innermost frames outside PyTorch are tried. The pattern may match
    anywhere in a frame's text: the file's name without its folder, a space, and the function's
    name.

    The text has no file name if the stack shows that the file is the script or holds a model: the
    name of such a file says nothing about a single request. A file holds a model if it has a frame
    of `forward`. The innermost frame does not count, because its `forward` calls PyTorch itself
    and may belong to a cache.
    """
    outside = [
        (f[0].replace("\\", "/"), f[2])
        for f in frames
        if f[1] > 0 and "/torch/" not in f[0].replace("\\", "/")
    ]
    programs = {path for path, function in outside if function == "<module>"}
    models = {path for path, function in outside[1:] if function == "forward"} | programs
    names = (
        f"{'' if path in models else path.rpartition('/')[2]} {function}"
        for path, function in outside[:_MOST_CALLERS]
    )
    return any(pattern.search(name) for name in names)


def _label_of(
    lifetimes: Lifetimes, labels: Sequence[Label], categories: Sequence[str]
) -> NDArray[np.int16]:
    """Returns the last label that each block's address got while the block was live."""
    found = np.full(len(lifetimes), -1, dtype=np.int16)
    number = {name: i for i, name in enumerate(categories)}
    known = [label for label in labels if label.category in number]
    if not known or not len(lifetimes):
        return found
    order = np.lexsort((lifetimes.start, lifetimes.address))
    address, start = lifetimes.address[order], lifetimes.start[order]
    at = np.array([label.address for label in known], dtype=np.uint64)
    event = np.array([label.event for label in known], dtype=np.int64)
    first = np.searchsorted(address, at, side="left")
    stop = np.searchsorted(address, at, side="right")
    for label, low, high, when in zip(
        known, first.tolist(), stop.tolist(), event.tolist(), strict=True
    ):
        block = low + int(np.searchsorted(start[low:high], when, side="left")) - 1
        if block >= low and lifetimes.end[order[block]] >= when:
            found[order[block]] = number[label.category]
    return found
