"""Makes the page of `plimsoll view` for one predicted run, or for two side by side."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.base.endings import check_ending
from plimsoll.base.errors import InputError
from plimsoll.base.files import check_can_be_made
from plimsoll.page.page_file import view
from plimsoll.prediction.trials.temporary_folder import temporary_folder
from plimsoll.recordings.reading import read_recording

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from plimsoll.page.page_file import ViewResult
    from plimsoll.prediction.request import Request
    from plimsoll.prediction.results import Prediction

_MOST_RUNS = 2


def check_page(requests: Sequence[Request], output: Path, *, force: bool) -> None:
    """Checks the page's options before the first run.

    Raises:
        InputError: If there are more than two runs, if a run is a job, or if the page cannot be
            written.
    """
    if len(requests) > _MOST_RUNS:
        raise InputError("a page shows one run, or two side by side")
    for request in requests:
        if request.nproc_per_node is not None:
            raise InputError(
                f"{request.script} is a job, and a page shows a program of one process"
            )
    check_ending(output, ".html", ".htm", what="a page")
    check_can_be_made(output, force=force)


@contextmanager
def recorded(requests: Sequence[Request]) -> Iterator[list[Request]]:
    """Yields the requests, each with a temporary file for its recording."""
    with temporary_folder() as folder:
        yield [
            replace(request, record=str(folder / f"{number}.plim"))
            for number, request in enumerate(requests)
        ]


def write_page(
    requests: Sequence[Request],
    found: Sequence[Prediction],
    output: Path,
    *,
    force: bool = False,
    names: Sequence[str] = (),
) -> ViewResult:
    """Writes the page of recorded runs.

    If a script does not fit, the page shows its run on a card with unlimited memory. The peaks in
    the script's prediction come from the same run.

    Args:
        requests: The requests that `recorded` yields.
        found: The predictions.
        output: The file of the page.
        force: Whether to replace an existing file.
        names: The names of the runs on the page. The default is the script and its card.

    Raises:
        InputError: If there is nothing to show, or the page cannot be written.
    """
    names = names or [f"{Path(one.script).name} on {one.gpu}" for one in found]
    recordings = []
    for request, one, name in zip(requests, found, names, strict=True):
        if one.processes or one.ranks:
            raise InputError(
                f"{one.script} starts processes that use GPUs, and a page shows a program of "
                "one process"
            )
        if not one.uses_cuda:
            raise InputError(f"{one.script} never touches CUDA: there is nothing to view")
        assert request.record is not None
        recordings.append(replace(read_recording(request.record), name=name))
    return view(*recordings, output=output, force=force)
