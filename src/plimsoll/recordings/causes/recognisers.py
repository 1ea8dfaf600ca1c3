"""Lists all recognisers, and sorts the causes that they find."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.recordings.causes.autocast_cache import autocast_cache
from plimsoll.recordings.causes.cause import LEAST_SHARE
from plimsoll.recordings.causes.growing_cache import growing_cache
from plimsoll.recordings.causes.kept_over_passes import (
    NO_GRAD,
    keeps_graph,
    kept_over_passes,
)
from plimsoll.recordings.causes.loaded_checkpoint import loaded_checkpoint
from plimsoll.recordings.causes.logits import logits
from plimsoll.recordings.causes.math_attention import math_attention
from plimsoll.recordings.causes.page_locked import page_locked
from plimsoll.recordings.causes.replicas import data_parallel
from plimsoll.recordings.causes.search_of_plans import search_of_plans
from plimsoll.recordings.causes.streams import idle_streams, waiting_frees
from plimsoll.recordings.causes.unused_activations import unused_activations
from plimsoll.recordings.causes.varied_sizes import varied_sizes
from plimsoll.recordings.causes.whole_model_checkpoint import whole_model_checkpoint
from plimsoll.recordings.causes.wording import is_within

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll.recordings.causes.cause import Cause, Facts, Recogniser

    Guard = Callable[[str, Recogniser], Callable[[Facts], Cause | None]]

RECOGNISERS: tuple[Recogniser, ...] = (
    kept_over_passes,
    unused_activations,
    loaded_checkpoint,
    math_attention,
    whole_model_checkpoint,
    autocast_cache,
    logits,
    growing_cache,
    data_parallel,
    search_of_plans,
    varied_sizes,
    idle_streams,
    waiting_frees,
    page_locked,
)
_OF_THE_ALLOCATOR = ("varied_sizes", "idle_streams", "waiting_frees")


def find_causes(facts: Facts, guarded: Guard) -> list[Cause]:
    """Finds all causes; the one that best explains the program's memory comes first.

    If blocks never took half of the reserved memory, the causes in `_OF_THE_ALLOCATOR` come first.
    Otherwise needless memory comes first, as `Cause.is_needless` defines it, and then what holds
    the most memory at the peak. Causes about host memory come last.

    Args:
        facts: The facts of one device.
        guarded: A function that takes a recogniser's name and the recogniser. It returns a
            recogniser that returns None instead of raising an error.
    """
    found = [
        cause
        for each in RECOGNISERS
        if (cause := guarded(f"the cause {each.__name__}", each)(facts)) is not None
    ]
    cache = next((cause for cause in found if cause.name == "growing_cache"), None)
    if cache is not None:  # a growing cache explains the growth better than `kept_over_passes`
        found = [
            cause
            for cause in found
            if cause.name != "kept_over_passes" or 2 * cache.bytes < cause.bytes
        ]
    found = _without_repeats(found)
    least = LEAST_SHARE * facts.reserved.bytes
    # Memory that grows is small in a short run, so it counts however little it is.
    kept = [cause for cause in found if cause.on_host or cause.growth_bytes or cause.bytes >= least]
    peak = facts.allocated_bytes
    if facts.failed and any(cause.grows_much(peak) for cause in kept):
        # If memory grows, other settings of the allocator would only delay the failure a little.
        kept = [cause for cause in kept if cause.name not in _OF_THE_ALLOCATOR]
    mostly_excess = 2 * facts.reserved.excess_bytes > facts.reserved.bytes
    return sorted(kept, key=lambda cause: _rank(cause, peak, mostly_excess=mostly_excess))


def _without_repeats(causes: list[Cause]) -> list[Cause]:
    """Leaves out `unused_activations` or `kept_over_passes` if both are about the same graphs.

    The growth of these graphs explains them better, unless it is less than half of them.
    """
    unused = next((one for one in causes if one.name == "unused_activations"), None)
    grows = next((one for one in causes if one.name == "kept_over_passes"), None)
    if unused is None or grows is None or not keeps_graph(grows):
        return causes
    if not is_within(grows.line, unused.line):
        return causes
    is_better = 2 * grows.bytes >= unused.bytes or grows.patch != NO_GRAD
    return [one for one in causes if one is not (unused if is_better else grows)]


def _rank(
    cause: Cause, peak_bytes: int, *, mostly_excess: bool
) -> tuple[bool, bool, bool, bool, int]:
    of_allocator = cause.name in _OF_THE_ALLOCATOR
    return (
        cause.on_host,
        of_allocator != mostly_excess,
        not cause.is_needless(peak_bytes),
        cause.name != "data_parallel",  # False sorts first: this cause says why cards differ
        -cause.bytes,
    )
