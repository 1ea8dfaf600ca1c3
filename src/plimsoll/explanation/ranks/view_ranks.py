"""Writes or serves a page that shows all ranks of a job, and pages that show one rank each."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.base.endings import check_ending
from plimsoll.base.errors import InputError
from plimsoll.base.files import NewFile
from plimsoll.base.notebook_form import NotebookForm, answer, link
from plimsoll.base.printable import printable
from plimsoll.base.units import format_count, format_size
from plimsoll.explanation.ranks.explain_ranks import read_job
from plimsoll.explanation.ranks.heat_map import heat_map, run_of
from plimsoll.explanation.ranks.rank_files import is_remote
from plimsoll.page.document import make_page
from plimsoll.page.server import PageServer

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from plimsoll.explanation.ranks.explain_ranks import Job

_MOST_PAGES = 16
"""At most this many ranks get a page of their own: first the outliers, then representatives."""


@dataclass(frozen=True)
class RanksViewResult(NotebookForm):
    """The written page of all ranks of a job.

    Made by `plimsoll.view_ranks`; see docs/how-to/which-rank-ran-out.md.

    Attributes:
        page: The file.
        page_bytes: Its size.
        ranks: The number of ranks on it.
        rank_pages: The pages of single ranks, by rank, in a folder beside the page.
        not_read: A line for each file that could not be used.
    """

    page: str
    page_bytes: int
    ranks: int
    rank_pages: dict[int, str]
    not_read: list[str]

    def __str__(self) -> str:
        """Returns the text that `plimsoll view` prints."""
        text = (
            f"{printable(self.page)}: {format_count(self.ranks, 'rank')}, "
            f"{format_size(self.page_bytes)}; {format_count(len(self.rank_pages), 'rank')} with a "
            "page, --serve opens each"
        )
        return "\n".join([text, *(f"note: left out: {line}" for line in self.not_read)])

    def _repr_html_(self) -> str:
        return answer(str(self)) + link(self.page)

    def to_dict(self) -> dict[str, Any]:
        """Returns the values for JSON: in base units, with stable keys."""
        return asdict(self)


def view_ranks(
    folder: str | PathLike[str],
    *,
    output: str | PathLike[str] | None = None,
    force: bool = False,
    pattern: str | None = None,
    memory: int | str | None = None,
    address: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> RanksViewResult:
    """Writes a page of all ranks over time, and a page for each rank that stands out.

    >>> import plimsoll
    >>> plimsoll.view_ranks("recordings/", output="job.html")  # doctest: +SKIP

    Args:
        folder: The folder with one recording for each rank, as for `explain_ranks`.
        output: The page; by default a file beside the folder, with the folder's name. The pages of
            single ranks are in a folder whose name is the page's name without the ending.
        force: Whether to replace existing files.
        pattern: A regular expression that finds the rank in a file's path, as for `explain_ranks`.
        memory: The memory for reading one recording, as for `explain`.
        address: The address of a Ray cluster whose workers read the recordings.
        progress: A function that is called with two numbers: recordings read, and recordings in
            total.

    Raises:
        InputError: If recordings cannot be used, or a page exists already.
    """
    if output is not None:
        check_ending(output, ".html", ".htm", what="a page")
    job = read_job(folder, pattern=pattern, memory=memory, address=address, progress=progress)
    path = Path(output) if output is not None else _path_beside(str(folder))
    inside = path.with_suffix("")
    shown = _with_pages(job)
    pages = {rank: inside / f"rank{rank}.html" for rank in shown}
    if not force and (taken := [one for one in (path, *pages.values()) if one.exists()]):
        raise InputError(f"{taken[0]}: exists already and is not overwritten; --force does")
    inside.mkdir(exist_ok=True)
    for rank, page in pages.items():
        with NewFile(page, force=force) as file:
            file.write(make_page([run_of(job, rank, memory)]).html.encode())
    with NewFile(path, force=force) as file:
        content = heat_map(
            job, lambda rank: f"{inside.name}/rank{rank}.html" if rank in pages else None
        ).encode()
        file.write(content)
    return RanksViewResult(
        page=str(path),
        page_bytes=len(content),
        ranks=len(job.summaries),
        rank_pages={rank: str(page) for rank, page in pages.items()},
        not_read=job.not_read,
    )


def serve_ranks(
    folder: str | PathLike[str],
    *,
    pattern: str | None = None,
    memory: int | str | None = None,
    address: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> PageServer:
    """Makes a server for the page of all ranks; a rank's own page is made when it is opened.

    Raises:
        InputError: If recordings cannot be used.
    """
    job = read_job(folder, pattern=pattern, memory=memory, address=address, progress=progress)
    page = heat_map(job, lambda rank: f"rank?number={rank}", served=True)
    return PageServer([], page=page, open_rank=lambda rank: run_of(job, rank, memory))


def _with_pages(job: Job) -> list[int]:
    """Returns the ranks that get a page: all if they are few, else outliers and representatives."""
    ranks = [one.rank for one in job.outliers] + [one.representative for one in job.groups]
    if len(job.files) <= _MOST_PAGES:
        ranks = [*job.files]
    return list(dict.fromkeys(ranks))[:_MOST_PAGES]


def _path_beside(folder: str) -> Path:
    name = folder.partition("?")[0].rstrip("/").rpartition("/")[2] or "ranks"
    return (
        Path(f"{name}.html") if is_remote(folder) else Path(folder).absolute().with_suffix(".html")
    )
