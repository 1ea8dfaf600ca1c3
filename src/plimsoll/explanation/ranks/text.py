"""Formats the explanation of many ranks as text: answer, outliers, groups, then causes."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from plimsoll.base.layout import Verbatim, paragraphs, table
from plimsoll.base.units import format_count, format_size
from plimsoll.explanation.first_lines import first_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from plimsoll.explanation.parts import ExplanationParts
    from plimsoll.explanation.ranks.outliers import Outlier
    from plimsoll.explanation.ranks.parts import RankFacts, RanksParts
    from plimsoll.explanation.ranks.rank_groups import RankGroup
    from plimsoll.explanation.ranks.rank_summary import RankSummary

_INDENT = "  "
_MOST_SHOWN = 20


def ranks_text(e: RanksParts, width: int | None = None) -> str:
    """Returns the whole explanation as text, without colour.

    Args:
        e: The explanation.
        width: The number of columns; None does not fold lines.
    """
    parts = [_first_lines(e), _outliers(e, width), _groups(e), *_explained(e), _notes(e), _next(e)]
    return paragraphs(parts, width)


def answer_line(e: RanksParts) -> str:
    """Returns the first line of the text.

    It describes the most important outlier. Without outliers, it names the fullest rank.
    """
    said = answer_of(e.outliers, e.ranks)
    return said if e.outliers else f"{said} {_fullest(e)}"


def answer_of(outliers: Sequence[Outlier], ranks: Sequence[RankFacts | RankSummary]) -> str:
    """Describes the most important outlier, if there is one."""
    if not outliers:
        return f"No rank of {len(ranks)} stands out."
    first = outliers[0]
    host = next((one.host for one in ranks if one.rank == first.rank), None)
    at = f" ({host})" if host else ""
    return f"Rank {first.rank} of {len(ranks)}{at} {deed(first)}."


def rank_ranges(ranks: Sequence[int]) -> str:
    """Formats ranks as ranges.

    >>> rank_ranges([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7-8'
    """
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], rank]
        else:
            parts.append([rank])
    return ", ".join("-".join(map(str, part)) for part in parts)


def _first_lines(e: RanksParts) -> Iterator[str]:
    yield answer_line(e)
    if not e.outliers:
        return
    first = e.outliers[0]
    explained = e.explanations.get(first.rank)
    leak = next((one for one in e.outliers if (one.rank, one.kind) == (first.rank, "leak")), None)
    grows = explained is not None and any(cause.growth_bytes for cause in explained.causes)
    if leak is not None and first.kind == "out_of_memory" and not grows:
        # `explained` would advise a change of the allocator. That change only delays the failure.
        kept = format_size(leak.bytes)
        yield f"Why: {leak.line} keeps more after each step than on other ranks, {kept} by now."
    elif explained is not None and explained.out_of_memory:
        yield from list(first_lines(explained))[1:]
    yield _beside(e, first.rank)
    yield _fullest(e)


def deed(one: Outlier) -> str:
    """Describes how an outlier differs, as the end of a sentence."""
    size = format_size(one.bytes)
    where = f" at {one.line}" if one.line else ""
    if one.kind == "out_of_memory":
        return f"ran out of memory{where}: {size} was asked for, at event {one.event:,}"
    if one.kind == "leak":
        return f"leaks: {one.line} has kept {size} after its steps"
    if one.kind == "fragmented":
        return f"is fragmented: it reserves {size} more than it allocates, compared with its group"
    if one.kind == "full":
        most = f", most of it at {one.line}" if one.line else ""
        return f"is fuller than its group: {size} more at its peak{most}"
    return f"differs from its group{where}, from event {one.event:,} on ({size})"


def _beside(e: RanksParts, rank: int) -> str:
    """Compares a rank with the representative of its group."""
    group = next(group for group in e.groups if rank in group.ranks)
    one, usual = _facts(e, rank), _facts(e, group.representative)
    if one is usual:
        return f"It is the representative of its {format_count(len(group.ranks), 'rank')}."
    return (
        f"Rank {usual.rank} of the same group ({len(group.ranks)} ranks) allocates "
        f"{format_size(usual.peak_allocated_bytes)} at its peak, and rank {one.rank} "
        f"{format_size(one.peak_allocated_bytes)}; they reserve "
        f"{format_size(usual.peak_reserved_bytes)} and {format_size(one.peak_reserved_bytes)}."
    )


def _fullest(e: RanksParts) -> str:
    one = _facts(e, e.fullest)
    of = f" of the card's {format_size(one.card_bytes)}" if one.card_bytes else ""
    return (
        f"The fullest is rank {one.rank}{_at(one)}: {format_size(one.peak_reserved_bytes)}{of} "
        f"reserved at its peak, {format_size(one.peak_allocated_bytes)} allocated."
    )


def _outliers(e: RanksParts, width: int | None) -> Iterator[str]:
    if not e.outliers:
        return
    yield f"Ranks that stand out in their groups ({len(e.outliers)})"
    rows = [("rank", "host", "what", "bytes", "line")]
    rows += [
        (
            str(one.rank),
            _facts(e, one.rank).host or "-",
            one.kind.replace("_", " "),
            format_size(one.bytes),
            one.line or "-",
        )
        for one in e.outliers[:_MOST_SHOWN]
    ]
    yield from table(
        rows, width=width, indent=_INDENT, names=("line", "what", "host"), optional=("host",)
    )
    if len(e.outliers) > _MOST_SHOWN:
        yield f"{_INDENT}and {len(e.outliers) - _MOST_SHOWN} more, which --json lists"


def _groups(e: RanksParts) -> Iterator[str]:
    of = f" of {e.world_size}" if e.world_size and e.world_size != len(e.ranks) else ""
    yield (
        f"{format_count(len(e.ranks), 'rank')}{of}, in {format_count(len(e.groups), 'group')} that "
        f"{'does' if len(e.groups) == 1 else 'do'} the same work"
    )
    for group in e.groups[:_MOST_SHOWN]:
        peaks = [_facts(e, rank).peak_allocated_bytes for rank in group.ranks]
        least, most = format_size(min(peaks)), format_size(max(peaks))
        between = least if least == most else f"{least} to {most}"
        yield (
            f"{_INDENT}{_ranks_of(group.ranks)}, such as {group.representative}: {between} "
            "allocated at the peak"
        )
    if len(e.groups) > _MOST_SHOWN:
        yield f"{_INDENT}and {format_count(len(e.groups) - _MOST_SHOWN, 'more group')}"


def _explained(e: RanksParts) -> Iterator[Iterator[str]]:
    for group in e.groups:
        explained = e.explanations.get(group.representative)
        if explained is not None:
            yield _explained_one(group, explained)


def _explained_one(group: RankGroup, explained: ExplanationParts) -> Iterator[str]:
    yield f"Rank {group.representative}, for {_ranks_of(group.ranks)}"
    for line in first_lines(explained):
        yield Verbatim(_INDENT + line) if isinstance(line, Verbatim) else _INDENT + line


def _notes(e: RanksParts) -> Iterator[str]:
    for line in e.not_read:
        yield f"note: left out: {line}"
    for one in e.ranks[:_MOST_SHOWN]:
        for problem in one.problems:
            yield f"note: rank {one.rank}: {problem}"


def _next(e: RanksParts) -> Iterator[str]:
    rank = e.outliers[0].rank if e.outliers else e.groups[0].representative
    yield Verbatim(f"Run: {shlex.join(['plimsoll', 'explain', _facts(e, rank).file])}")


def _at(one: RankFacts) -> str:
    return f" ({one.host})" if one.host else ""


def _ranks_of(ranks: Sequence[int]) -> str:
    shown = rank_ranges(ranks)
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


def _facts(e: RanksParts, rank: int) -> RankFacts:
    return next(one for one in e.ranks if one.rank == rank)
