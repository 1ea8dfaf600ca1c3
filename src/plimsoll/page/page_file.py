"""Writes the page to a file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.base.endings import check_ending
from plimsoll.base.files import NewFile
from plimsoll.base.notebook_form import NotebookForm, answer, link
from plimsoll.base.printable import printable
from plimsoll.base.units import format_count, format_size
from plimsoll.page.document import make_page
from plimsoll.page.run import open_recording, path_beside, prepare

if TYPE_CHECKING:
    from os import PathLike

    from plimsoll.recordings.recording import Recording


@dataclass(frozen=True)
class ViewResult(NotebookForm):
    """A written page.

    `plimsoll.view` returns it; see docs/view.md.

    Attributes:
        page: The page's file.
        page_bytes: The file's size.
        events: The number of events on the page.
        blocks: The number of blocks on the page.
        blocks_summed_up: The number of these blocks that the page does not show one by one. It
            shows only their sums, so that the file stays small.
        summed_up_below_bytes: The page shows only the sums of blocks smaller than this; None if it
            shows every block.
    """

    page: str
    page_bytes: int
    events: int
    blocks: int
    blocks_summed_up: int
    summed_up_below_bytes: int | None

    def __str__(self) -> str:
        """Returns the text that `plimsoll view` prints."""
        counts = f"{format_count(self.events, 'event')}, {format_count(self.blocks, 'block')}"
        text = f"{printable(self.page)}: {counts}, {format_size(self.page_bytes)}"
        if self.summed_up_below_bytes is None:
            return text
        return (
            f"{text}\nSummed up: {format_count(self.blocks_summed_up, 'block')} smaller than "
            f"{format_size(self.summed_up_below_bytes)}; --serve shows each."
        )

    def _repr_html_(self) -> str:
        return answer(str(self)) + link(self.page)

    def to_dict(self) -> dict[str, Any]:
        """Returns the values for JSON, in base units and with stable keys."""
        return asdict(self)


def view(
    source: str | PathLike[str] | Recording,
    other: str | PathLike[str] | Recording | None = None,
    *,
    output: str | PathLike[str] | None = None,
    force: bool = False,
) -> ViewResult:
    """Writes a recording as one self-contained page, which needs no network.

    >>> import plimsoll
    >>> plimsoll.view("run.plim", output="run.html")  # doctest: +SKIP

    Args:
        source: A snapshot or trace file, or a `Recording`.
        other: Another recording, which the page shows beside the first one on the same scale.
        output: The page's file. The default is the recording's path with the ending ".html".
        force: Whether to replace an existing file.

    Raises:
        InputError: If a recording cannot be read, if the page's file exists and `force` is not set,
            or if `output` has the ending of another format.
    """
    if output is not None:
        check_ending(output, ".html", ".htm", what="a page")
    recordings = [open_recording(one) for one in (source, other) if one is not None]
    runs = [prepare(recording) for recording in recordings]
    path = Path(output) if output is not None else path_beside(recordings, ".html")
    with NewFile(path, force=force) as file:
        page = make_page(runs)
        content = page.html.encode()
        file.write(content)
    return ViewResult(
        page=str(path),
        page_bytes=len(content),
        events=page.events,
        blocks=page.blocks,
        blocks_summed_up=page.blocks_left_out,
        summed_up_below_bytes=page.least_bytes or None,
    )
