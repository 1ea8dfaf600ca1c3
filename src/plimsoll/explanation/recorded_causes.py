"""Finds the causes of a recording's memory use, with the savings that replays measured."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from plimsoll.base.printable import printable
from plimsoll.base.watchers import Watchers
from plimsoll.explanation.leak_advice import FoundLeak
from plimsoll.recordings.analysis.leaks import find_leaks, growing_stacks
from plimsoll.recordings.causes.cause import Facts, Notes, Reserved
from plimsoll.recordings.causes.inner_loops import inner_loops
from plimsoll.recordings.causes.kept_over_passes import (
    blocks_of_earlier_passes,
    cause_of_leak,
    growing_inner_loop,
    lines_that_keep,
)
from plimsoll.recordings.causes.outside_pytorch import CardParts, own_bytes
from plimsoll.recordings.causes.recognisers import find_causes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from plimsoll.explanation.explained_usage import ExplainedUsage
    from plimsoll.explanation.parts import Advice, CardUse, OutOfMemory
    from plimsoll.prediction.parts import GpuUse
    from plimsoll.recordings.analysis.leaks import Leak
    from plimsoll.recordings.analysis.steps import Steps
    from plimsoll.recordings.causes.cause import Cause


def recorded_causes(usage: ExplainedUsage, uses: Iterable[GpuUse], *, failed: bool) -> list[Cause]:
    """Finds the causes of the explained device's memory use; the best explanation comes first.

    Args:
        usage: The memory of the explained device.
        uses: The figures of each device.
        failed: Whether a request of the program failed.
    """
    watchers = Watchers()
    found = find_causes(_facts(usage, uses, failed=failed), watchers.guarded)
    for name, error in watchers.failures.items():
        print(printable(f"plimsoll: {name} could not be looked for: {error}"), file=sys.stderr)
    return found


def growing_lines(usage: ExplainedUsage) -> list[FoundLeak]:
    """Returns the lines whose memory grows, with their blocks and causes, the fastest first.

    A line's memory grows either from step to step, or from pass to pass of a loop inside the step
    that has the peak.
    """
    facts = _facts(usage, (), failed=False)
    leaks = find_leaks(usage.lifetimes, usage.steps, usage.group, usage.names)
    found = _found(facts, leaks, usage.steps)
    loop = growing_inner_loop(facts)
    if len(loop):
        step = int(np.searchsorted(usage.steps.boundaries, facts.event, side="right")) - 1
        names = {leak.what for leak in leaks}
        inside = [
            replace(leak, inside_step=step)
            for leak in lines_that_keep(facts, loop, usage.group, usage.names)
        ]
        every = inner_loops(facts)
        found += [
            replace(one, passes=every)
            for one in _found(facts, inside, loop)
            if one.leak.what not in names
        ]
    return sorted(found, key=lambda one: -one.leak.slope_bytes)


def _found(facts: Facts, leaks: Sequence[Leak], passes: Steps) -> list[FoundLeak]:
    kept, found = blocks_of_earlier_passes(facts, leaks, passes), []
    for leak in leaks:
        is_of_line = facts.line == facts.lines.index(leak.what)
        stacks = growing_stacks(facts.blocks[is_of_line], passes)
        is_of_line &= np.isin(facts.blocks.stack, stacks)
        cause = cause_of_leak(facts, leak, leaks, passes, kept)
        found.append(FoundLeak(leak, is_of_line, cause, passes))
    return found


def _facts(usage: ExplainedUsage, uses: Iterable[GpuUse], *, failed: bool) -> Facts:
    parts = usage.reserved
    free = parts.cached_bytes + parts.fragments_bytes
    excess = max(0, parts.reserved_bytes - usage.device.peak_allocated_bytes)
    return Facts(
        device=usage.trace.device,
        blocks=usage.lifetimes,
        category=usage.categories.number,
        line=usage.group,
        lines=usage.names,
        frames=usage.trace.frames,
        steps=usage.steps,
        event=usage.peak.event,
        reserved=Reserved(parts.reserved_bytes, min(free, excess), parts.pending_bytes),
        notes=Notes(
            devices={
                use.device: use.peak_allocated_bytes
                for use in uses
                if use.device is not None and use.peak_allocated_bytes is not None
            }
        ),
        failed=failed,
        room_bytes=None if usage.device.card is None else usage.device.card.total_bytes,
    )


def card_parts(card: CardUse, failed: OutOfMemory, error: str | None) -> CardParts | None:
    """Returns who held the card's memory when the driver refused a request; None if unknown.

    Args:
        card: The use of the card.
        failed: The request that failed.
        error: The text of PyTorch's error; None without one.
    """
    if failed.cause != "card" or card.total_bytes is None or card.other_bytes is None:
        return None
    context = card.context_bytes or 0
    own = None if error is None else own_bytes(error)
    libraries = 0 if own is None else min(card.other_bytes, own - failed.reserved_bytes - context)
    libraries = max(0, libraries)
    others = card.other_bytes - libraries
    return CardParts(
        total_bytes=card.total_bytes,
        pytorch_bytes=failed.reserved_bytes + failed.needed_bytes,
        context_bytes=context,
        libraries_bytes=libraries,
        others_bytes=others if own is not None else 0,
        rest_bytes=others if own is None else 0,
    )


def with_savings(causes: Iterable[Cause], advice: Sequence[Advice]) -> list[Cause]:
    """Adds to each cause the effect of the advice against that cause.

    The advice has been tried already. `saves_bytes` is the saving of the change to the script, or
    else the largest saving of other advice. `serves_failed_requests` tells whether any advice
    serves the requests that failed. Each is None if no trial shows it.
    """
    kinds = {"kept_over_passes": ("leak",), "varied_sizes": ("setting", "elastic")}
    return [_with_effect(each, kinds.get(each.name, ()), advice) for each in causes]


def _with_effect(cause: Cause, kinds: Collection[str], advice: Sequence[Advice]) -> Cause:
    if not cause.change:
        return cause
    tried = [one for one in advice if one.kind in kinds]
    served = [one.serves_failed_requests for one in tried]
    saved = [one.saves_bytes for one in tried if one.serves_failed_requests is None]
    of_script = [
        one.saves_bytes for one in advice if one.kind == "script" and one.what == cause.change
    ]
    known = [each for each in served if each is not None]
    return replace(
        cause,
        saves_bytes=max(of_script, default=0) or max(saved, default=0) or None,
        serves_failed_requests=any(known) if known else None,
    )
