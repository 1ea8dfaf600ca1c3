"""Explains a job from one recording for each rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from plimsoll.base.errors import InputError
from plimsoll.base.notebook_form import NotebookForm
from plimsoll.base.units import format_count
from plimsoll.base.workers.everywhere import run_all
from plimsoll.explanation.explain import explain
from plimsoll.explanation.ranks import rank_files
from plimsoll.explanation.ranks.html import ranks_html
from plimsoll.explanation.ranks.outliers import find_outliers
from plimsoll.explanation.ranks.parts import RankFacts, RanksParts
from plimsoll.explanation.ranks.rank_groups import group_ranks
from plimsoll.explanation.ranks.rank_summary import RankSummary, summarize
from plimsoll.explanation.ranks.text import rank_ranges, ranks_text
from plimsoll.recordings.reading import read_recording

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Sequence
    from os import PathLike

    from plimsoll.explanation.parts import ExplanationParts
    from plimsoll.explanation.ranks.outliers import Outlier
    from plimsoll.explanation.ranks.rank_groups import RankGroup

_MOST_EXPLAINED = 4  # one rank is explained for each group, in at most this number of groups
_MOST_EVENTS_EXPLAINED = 10_000_000  # a recording this long takes 700 MiB to explain


@dataclass(frozen=True)
class RanksExplanation(NotebookForm, RanksParts):
    """The explanation of a job's memory by rank; see docs/how-to/which-rank-ran-out.md."""

    def __str__(self) -> str:
        return ranks_text(self)

    def _repr_html_(self) -> str:
        return ranks_html(self)


def explain_ranks(
    folder: str | PathLike[str],
    *,
    pattern: str | None = None,
    advice: bool = True,
    search_events: int | None = None,
    memory: int | str | None = None,
    processes: int | None = None,
    address: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> RanksExplanation:
    """Finds a job's ranks that ran out of memory or stand out in another way, and explains why.

    >>> import plimsoll
    >>> found = plimsoll.explain_ranks("recordings/")  # doctest: +SKIP
    >>> found.outliers[0].rank, found.outliers[0].kind  # doctest: +SKIP
    (37, 'out_of_memory')

    Args:
        folder: The folder with one recording for each rank: snapshots and traces, in it and its
            subfolders. It may be in an object store, s3:// or gs://.
        pattern: A regular expression that finds the rank in a file's path, by its only group or by
            the group named `rank`; a group named `host` finds the host. By default the rank is
            the one in the recording, or else the one in the file's name.
        advice: Whether to also search for advice for each rank that is explained.
        search_events: The number of events that each of these searches may replay, as for
            `explain`.
        memory: The most host memory that the contents of one recording may take, as for
            `read_recording`. If it is not given, a rank whose recording has more than ten million
            events is not explained.
        processes: The number of files to read at once; by default one for each processor.
        address: The address of a Ray cluster whose workers read the recordings.
        progress: A function that is called with two numbers: recordings read, and recordings in
            total.

    Raises:
        InputError: If there are no recordings, two have the same rank, or an option cannot be used.
    """
    job = read_job(
        folder, pattern=pattern, memory=memory, processes=processes, address=address,
        progress=progress,
    )  # fmt: skip
    chosen = _to_explain(job.groups, job.outliers)
    events = search_events if advice else 0
    work = [_Explaining(job.files[rank], events, memory) for rank in chosen]
    not_read = [*job.not_read]
    explanations: dict[int, ExplanationParts] = {}
    for done in run_all(_explain, work, processes=processes, address=address):
        if done.result is not None:
            explanations[chosen[done.index]] = done.result
        else:
            not_read.append(f"rank {chosen[done.index]} is not explained: {done.error}")
    return RanksExplanation(
        folder=str(folder),
        world_size=max((one.world_size or 0 for one in job.summaries), default=0) or None,
        ranks=[_facts(one) for one in job.summaries],
        groups=job.groups,
        outliers=job.outliers,
        fullest=_fullest(job.summaries),
        explanations=explanations,
        not_read=sorted(not_read),
    )


@dataclass(frozen=True)
class Job:
    """The summaries of all ranks in a folder."""

    folder: str
    files: dict[int, rank_files.RankFile]
    summaries: list[RankSummary]
    groups: list[RankGroup]
    outliers: list[Outlier]
    not_read: list[str]


def read_job(
    folder: str | PathLike[str],
    *,
    pattern: str | None = None,
    memory: int | str | None = None,
    processes: int | None = None,
    address: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Job:
    """Summarizes each rank of a folder, and notes each file that cannot be used.

    Raises:
        InputError: If no file can be used, two have the same rank, or an option cannot be used.
    """
    files = rank_files.recordings_in(str(folder))
    made = None if pattern is None else rank_files.rank_pattern(pattern)
    work = [_Reading(file, made, memory) for file in files]
    found: list[RankSummary] = []
    not_read: list[str] = []
    for done in run_all(
        _summarize, work, result_type=RankSummary, processes=processes, address=address
    ):
        name = files[done.index].name
        if done.result is None:
            error = done.error or "nothing is known of it"
            not_read.append(error if name in error else f"{name}: {error}")
        elif done.result.rank is None:
            not_read.append(
                f"{name}: neither the recording nor its name says its rank; --rank-pattern does"
            )
        else:
            found.append(done.result)
        if progress is not None:
            progress(len(found) + len(not_read), len(files))
    found.sort(key=lambda one: (one.rank, one.file))
    found, earlier = _latest_starts(found)
    not_read += earlier
    _check_ranks(found, not_read)
    groups = group_ranks(found)
    by_name = {file.name: file for file in files}
    return Job(
        folder=str(folder),
        files={one.rank: by_name[one.file] for one in found if one.rank is not None},
        summaries=found,
        groups=groups,
        outliers=find_outliers(found, groups),
        not_read=not_read,
    )


def _latest_starts(found: Sequence[RankSummary]) -> tuple[list[RankSummary], list[str]]:
    """Keeps the latest recording of each rank.

    If a launcher restarts a rank, that rank writes a new recording at each start.

    Returns:
        The latest recordings, and a line about dropped recordings if there are any.
    """
    latest: dict[tuple[int | None, str], RankSummary] = {}
    for one in found:
        first, start = rank_files.restart_in_name(one.file)
        known = latest.get((one.rank, first))
        if known is None or start > rank_files.restart_in_name(known.file)[1]:
            latest[one.rank, first] = one
    kept = [*latest.values()]
    files = {one.file for one in kept}
    earlier = [one for one in found if one.file not in files]
    if not earlier:
        return kept, []
    again = sorted({one.rank for one in earlier if one.rank is not None})
    which = f"rank {again[0]}" if len(again) == 1 else f"ranks {rank_ranges(again)}"
    count = format_count(len(earlier), "earlier recording")
    earliest = min(earlier, key=lambda one: rank_files.restart_in_name(one.file)[1])
    return kept, [
        f"{count} of {which}, which started again, such as {earliest.file}; plimsoll "
        "explains the latest start of each rank"
    ]


def _check_ranks(found: Sequence[RankSummary], not_read: Sequence[str]) -> None:
    if not found:
        others = f", and so are {len(not_read) - 1} more" if len(not_read) > 1 else ""
        raise InputError(f"no recording can be used: {min(not_read)}{others}")
    for one, other in pairwise(found):
        if one.rank == other.rank:
            raise InputError(
                f"{one.file} and {other.file} are both of rank {one.rank}; leave one out, or tell "
                "their ranks with --rank-pattern"
            )


@dataclass(frozen=True)
class _Reading:
    """The file and the options that a worker process needs to summarize a rank."""

    file: rank_files.RankFile
    pattern: re.Pattern[str] | None
    memory: int | str | None


@dataclass(frozen=True)
class _Explaining:
    """The file and the options that a worker process needs to explain a rank."""

    file: rank_files.RankFile
    search_events: int | None
    memory: int | str | None


def _summarize(work: _Reading) -> RankSummary:
    name, pattern = work.file.name, work.pattern
    with work.file.here() as path:
        try:
            summary = summarize(path, memory=work.memory)
        except InputError as error:
            raise InputError(str(error).replace(str(path), name)) from None
    named, host = rank_files.rank_in_name(name, pattern), rank_files.host_in_name(name, pattern)
    rank = named if pattern is not None or summary.rank is None else summary.rank
    return replace(summary, file=name, rank=rank, host=host or summary.host)


def _explain(work: _Explaining) -> ExplanationParts:
    with work.file.here() as path:
        recording = replace(read_recording(path, memory=work.memory), name=work.file.name)
        events = sum(trace.event_count for trace in recording.devices)
        if work.memory is None and events > _MOST_EVENTS_EXPLAINED:
            raise InputError(
                f"it has {events:,} events, and explaining takes memory for each; above "
                f"{_MOST_EVENTS_EXPLAINED:,} events give --read-memory 100GiB, or run `plimsoll "
                "explain` on its file"
            )
        return explain(recording, search_events=work.search_events)


def _to_explain(groups: Sequence[RankGroup], outliers: Sequence[Outlier]) -> list[int]:
    chosen = [group.representative for group in groups[:_MOST_EXPLAINED]]
    if outliers and outliers[0].rank not in chosen:
        chosen.append(outliers[0].rank)
    return chosen


def _fullest(summaries: Sequence[RankSummary]) -> int:
    """Returns the rank that fills its card most, or reserves most if cards are unknown."""
    knows_cards = all(one.card_bytes for one in summaries)

    def fullness(one: RankSummary) -> tuple[float, int]:
        of = one.card_bytes if knows_cards and one.card_bytes else 1
        return one.peak_reserved_bytes / of, one.peak_allocated_bytes

    rank = max(summaries, key=fullness).rank
    assert rank is not None  # `read_job` leaves out summaries without a rank
    return rank


def _facts(one: RankSummary) -> RankFacts:
    assert one.rank is not None  # `read_job` leaves out summaries without a rank
    return RankFacts(
        rank=one.rank,
        host=one.host,
        file=one.file,
        device=one.device,
        events=one.events,
        steps=one.steps,
        peak_allocated_bytes=one.peak_allocated_bytes,
        peak_reserved_bytes=one.peak_reserved_bytes,
        card_bytes=one.card_bytes,
        ran_out_us=None if one.failure is None else one.failure.time_us,
        problems=one.problems,
    )
