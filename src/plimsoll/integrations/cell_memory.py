"""Shows the GPU memory of a notebook's cell, as text and as tables."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from plimsoll.base.notebook_form import NotebookForm, answer, size_table
from plimsoll.base.printable import join_lines
from plimsoll.base.units import format_size, size_row
from plimsoll.recordings.analysis.category_names import category_title
from plimsoll.recordings.analysis.lines import renamed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from plimsoll.integrations.recorded_peak import RecordedPeak
    from plimsoll.recordings.analysis.lines import LineShare

_MOST_LINES = 6


class NamesCells:
    """Turns the temporary file name of an IPython cell into the cell's name, such as "In[3]".

    Args:
        format_code_name: IPython's function. For the file name of a cell, it returns a pair such as
            ("Cell", "In[3]"); for other file names None.
    """

    def __init__(self, format_code_name: Callable[[str], tuple[str, str] | None]) -> None:
        self._format = format_code_name

    def __call__(self, file: str) -> str:
        """Returns the cell's name if `file` belongs to a cell; otherwise `file` itself."""
        for name in (file, str(Path(file).absolute())):
            if (known := self._format(name)) is not None:
                return known[1]
        return file

    def line(self, share: LineShare) -> LineShare:
        """Copies the share, and replaces the file name in its `line` by the cell's name."""
        return replace(share, line=renamed(share.line, self._place))

    def _place(self, place: str) -> str:
        file, _, rest = place.rpartition(":")
        name = self(file)
        if not file or name == file:
            return place
        return f"{name}:{rest.removesuffix(' <module>')}"


@dataclass(frozen=True)
class CellMemory(NotebookForm):
    """A cell's memory on one GPU: the one on which the process held the most memory.

    `%%memory` shows it.

    Attributes:
        cell: Its name, such as "In[3]".
        device: The GPU. None if the cell used no GPU; all sizes are then zero.
        peak_bytes: The most bytes in live blocks while the cell ran, including older blocks.
        took_bytes: The part of the peak that the cell requested.
        keeps_bytes: The live bytes after the cell, minus those before it.
        by_category: The peak's bytes by category.
        lines: The lines that held the most at the peak.
        recording: The file of the recording, if that was kept.
    """

    cell: str
    device: int | None
    peak_bytes: int
    took_bytes: int
    keeps_bytes: int
    by_category: dict[str, int]
    lines: list[LineShare]
    recording: str | None

    @classmethod
    def of(
        cls,
        cell: str,
        peak: RecordedPeak | None,
        keeps_bytes: int,
        recording: str | None,
        names: NamesCells,
    ) -> Self:
        """Makes a `CellMemory` from a cell's `peak`, which is None if nothing was recorded."""
        if peak is None:
            return cls(cell, None, 0, 0, 0, {}, [], recording)
        return cls(
            cell,
            peak.device,
            peak.allocated_bytes,
            peak.allocated_bytes - peak.before_bytes,
            keeps_bytes,
            peak.by_category,
            [names.line(line) for line in peak.lines],
            recording,
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns the values for JSON: in base units, with stable keys."""
        return asdict(self)

    def __str__(self) -> str:
        return join_lines(self._rows())

    def _rows(self) -> Iterator[str]:
        yield self._answer()
        if self.lines:
            yield "Lines that hold the most at the peak:"
            for line in self.lines[:_MOST_LINES]:
                yield f"  {size_row(line.bytes, line.line)}"

    def _answer(self) -> str:
        if self.device is None:
            return f"{self.cell} used no GPU memory"
        kept = f"keeps {format_size(self.keeps_bytes)}"
        if self.keeps_bytes < 0:
            kept = f"gives back {format_size(-self.keeps_bytes)} that was allocated before"
        return (
            f"{self.cell} takes {format_size(self.took_bytes)} of GPU {self.device} at its peak, "
            f"and {kept}; with what was allocated before, the peak is "
            f"{format_size(self.peak_bytes)}"
        )

    def _repr_html_(self) -> str:
        lines = [(line.line, line.bytes) for line in self.lines[:_MOST_LINES]]
        categories = sorted(self.by_category.items(), key=lambda item: -item[1])
        return "".join(
            [
                answer(self._answer()),
                size_table("Lines that hold the most at the peak", lines, self.peak_bytes),
                size_table(
                    "What it is for",
                    [(category_title(name), size) for name, size in categories],
                    self.peak_bytes,
                ),
            ]
        )
