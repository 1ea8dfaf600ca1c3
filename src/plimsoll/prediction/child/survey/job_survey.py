"""Makes the survey of a job, which lists the parts of its program that could be changed.

Each rank writes a file. The file's path is the requested path, followed by a dot and the rank. The
process that started the ranks combines these files into one file at the requested path. The result
is the first rank's survey, with one change: for each allocator it gives the memory use of the rank
on which this allocator reserves most.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.base.telemetry.job import launched_as
from plimsoll.prediction.child.survey.allocators import try_allocators
from plimsoll.prediction.child.survey.surveyor import Surveyor
from plimsoll.prediction.survey import Survey

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plimsoll.prediction.child.labels import BlockLabels
    from plimsoll.prediction.request import Request
    from plimsoll.prediction.survey import AllocatorUse
    from plimsoll.torch.simulated.simulation import Simulation


def first_ranks_surveyor(
    request: Request, simulation: Simulation, labels: BlockLabels
) -> Surveyor | None:
    """Returns a surveyor if this process is the first rank of a surveyed job; otherwise None."""
    if request.survey is None or request.nproc_per_node is None:
        return None
    if launched_as("RANK") != min(request.ranks or [0]):
        return None
    return Surveyor(simulation, labels, request.room)


def leave_survey(
    request: Request, simulation: Simulation, surveyor: Surveyor | None, device: int
) -> None:
    """Writes this rank's survey.

    The first rank's survey is complete. Any other rank's survey has only the memory that this rank
    would use with each allocator.
    """
    rank = launched_as("RANK")
    if request.survey is None or request.nproc_per_node is None or rank is None:
        return
    if surveyor is not None:
        survey = surveyor.survey()
    else:
        survey = Survey(allocators=try_allocators(simulation, device, request.room))
    Path(f"{request.survey}.{rank}").write_text(json.dumps(survey.to_dict()))


def join_surveys(request: Request) -> None:
    """Combines the ranks' files into one file at the requested path.

    Does nothing if no rank wrote a file.
    """
    if request.survey is None:
        return
    asked = Path(request.survey)
    left = {
        int(path.suffix[1:]): Survey.from_dict(json.loads(path.read_text()))
        for path in asked.parent.glob(f"{asked.name}.*")
    }
    if not left:
        return
    own = left[min(left)]
    allocators = [
        _fullest([survey.allocators for survey in left.values()], use) for use in own.allocators
    ]
    asked.write_text(json.dumps(replace(own, allocators=allocators).to_dict()))


def _fullest(ranks: Sequence[Sequence[AllocatorUse]], of: AllocatorUse) -> AllocatorUse:
    """Returns an allocator's use on the rank where it reserves most.

    In the result, `fits` says whether all ranks fit, and `least_bytes` is the largest `least_bytes`
    of any rank. Ranks that fit have no `least_bytes`, and are left out. `within_bytes` is the most
    that any rank takes if all fit.
    """
    uses = [
        use
        for uses in ranks
        for use in uses
        if (use.allocator, use.conf) == (of.allocator, of.conf)
    ]
    fullest = max(uses, key=lambda use: use.peak_reserved_bytes)
    found_out = [use.least_bytes for use in uses if use.least_bytes is not None]
    fits = all(use.fits for use in uses)
    is_limited = any(use.within_bytes is not None for use in uses)
    return replace(
        fullest,
        fits=fits,
        least_bytes=max(found_out, default=None),
        within_bytes=max(use.taken_bytes for use in uses) if fits and is_limited else None,
    )
