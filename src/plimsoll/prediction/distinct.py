"""Chooses which ranks of a large job run. Every other rank counts as equal to a rank that runs.

One rank runs alone first. It reports the process groups that the script makes. It also reports
through which groups ranks send to each other (send/recv): these groups connect the stages of a
pipeline. Stages differ in their memory, so the first, the second and the last stage are run. Each
of these stages is run with two ranks: one from the job's first pipeline, and one from its last
pipeline. If a tensor or the data is divided into unequal parts, the last pipeline gets the smallest
part, so the memory of the two ranks may differ.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from plimsoll.base.errors import InputError, ScriptError
from plimsoll.prediction.child_process import started

if TYPE_CHECKING:
    from plimsoll.prediction.request import Request


@dataclass(frozen=True)
class Roles:
    """The ranks that run, each with the number of ranks that it represents, including itself."""

    stands_for: dict[int, int]

    @property
    def ranks(self) -> list[int]:
        """The ranks that run."""
        return sorted(self.stands_for)


def find_roles(request: Request) -> Roles:
    """Chooses the ranks to run.

    Runs one rank alone first. The choice follows from the process groups that this rank reports.

    Raises:
        InputError: If the script cannot be simulated.
    """
    assert request.nproc_per_node is not None
    world = request.nproc_per_node * request.nnodes
    with TemporaryDirectory(prefix="plimsoll-") as folder:
        file = Path(folder) / "groups.json"
        setup = replace(request.setup, unlimited=True)
        asked = replace(request, setup=setup, groups=str(file), summary=None)
        # The run may end at the rank's first send, because no other rank runs to receive it.
        with (
            started(asked, shows_output=False, is_aside=True) as answer,
            suppress(ScriptError, InputError),
        ):
            answer()
        found = json.loads(file.read_text()) if file.exists() else {"groups": [], "sends": []}
    return choose_roles(world, found["groups"], found["sends"])


def choose_roles(world: int, groups: list[list[int]], sends: list[list[int]]) -> Roles:
    """Chooses the ranks to run.

    Args:
        world: The number of ranks.
        groups: The ranks of each process group that the first rank made. The first rank need not
            be a member.
        sends: The ranks of each group through which the first rank sent tensors to another rank.
    """
    stages = max(sends, key=len, default=[])
    if len(stages) < 2:
        last = world - 1
        return Roles({0: world - 1, last: 1} if last else {0: 1})
    first = [rank - stages[0] for rank in stages]
    pipelines = [stages] + [
        group for group in groups if [rank - group[0] for rank in group] == first
    ]
    of_rank = {rank: group for group in pipelines for rank in group}
    ends = of_rank.get(world - 1, stages)
    counts: dict[int, int] = {}
    for rank in range(world):
        group = of_rank.get(rank, stages)
        place = group.index(rank) if rank in group else 0
        model = ends if group == ends else stages
        chosen = model[_representative(place, len(group))]
        counts[chosen] = counts.get(chosen, 0) + 1
    return Roles(counts)


def _representative(place: int, count: int) -> int:
    """Returns which stage is run to represent stage `place`: the first, second or last."""
    if place in (0, count - 1):
        return place
    return 1
