"""Makes the page of all ranks: their memory over time as a heat map, with links to each rank."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from plimsoll.base.printable import printable
from plimsoll.explanation.ranks.text import answer_of, deed
from plimsoll.page.assets import page_template
from plimsoll.page.columns import pack_column
from plimsoll.page.document import data_element
from plimsoll.page.run import prepare
from plimsoll.recordings.reading import read_recording

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll.explanation.ranks.explain_ranks import Job
    from plimsoll.explanation.ranks.rank_summary import RankSummary
    from plimsoll.page.run import Run


def heat_map(job: Job, page_of: Callable[[int], str | None], *, served: bool = False) -> str:
    """Returns the page as HTML.

    Args:
        job: The job to show.
        page_of: A function that returns the address of a rank's own page, or None.
        served: Whether a server serves the page; otherwise it is a file.
    """
    most = np.concatenate([one.timeline.most_bytes for one in job.summaries])
    groups = {rank: place for place, group in enumerate(job.groups) for rank in group.ranks}
    data = {
        "folder": printable(job.folder),
        "answer": printable(answer_of(job.outliers, job.summaries)),
        "hasTime": all(one.timeline.begin_us > 0 for one in job.summaries),
        "outliers": [
            {"rank": one.rank, "text": printable(f"Rank {one.rank} {deed(one)}")}
            for one in job.outliers
        ],
        "ranks": [_rank(one, groups, page_of, _limit(job)) for one in job.summaries],
        "most": pack_column(most, "delta"),
    }
    html = page_template("ranks.html").replace("@CONNECT@", "'self'" if served else "'none'", 1)
    return html.replace("@DATA@", data_element("data", data), 1)


def run_of(job: Job, rank: int, memory: int | str | None) -> Run:
    """Prepares a rank's recording for its page.

    Raises:
        KeyError: If there is no such rank.
        InputError: If the recording can no longer be read.
    """
    file = job.files[rank]
    with file.here() as path:
        return prepare(replace(read_recording(path, memory=memory), name=file.name))


def _limit(job: Job) -> int:
    """Returns the most bytes that any rank reserved.

    If a rank's card is unknown, the rank's colour scale ends at this value.
    """
    return max(one.peak_reserved_bytes for one in job.summaries)


def _rank(
    one: RankSummary, groups: dict[int, int], page_of: Callable[[int], str | None], limit: int
) -> dict[str, Any]:
    assert one.rank is not None  # `read_job` leaves out summaries without a rank
    return {
        "rank": one.rank,
        "host": None if one.host is None else printable(one.host),
        "group": groups[one.rank],
        "page": page_of(one.rank),
        "command": printable(shlex.join(["plimsoll", "view", one.file])),
        "limit": max(one.card_bytes or limit, 1),
        "length": max(one.timeline.end_us - one.timeline.begin_us, 1),
    }
