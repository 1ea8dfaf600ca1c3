"""The number of a job's ranks and machines, and the ranks that run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

from plimsoll.base.errors import InputError

DISTINCT: Literal["distinct"] = "distinct"
_MOST_RUNNING = 1024
_MOST_UNASKED = 64
"""The most processes to start if the user did not choose the ranks. Each takes about 1 GiB."""
_MOST_RANKS = 1 << 20
_ON_A_NODE = 8
"""The number of processes on a machine, if the user gave only the total number."""


@dataclass(frozen=True)
class JobShape:
    """The size of a job, and which of its ranks run.

    Attributes:
        nproc_per_node: The number of ranks on each machine; None if the script is not a job.
        nnodes: The number of machines.
        ranks: The ranks that run. "distinct" runs one rank of each group of ranks that should
            use equal memory (see `plimsoll.prediction.distinct`). None runs all.
    """

    nproc_per_node: int | None = None
    nnodes: int = 1
    ranks: list[int] | Literal["distinct"] | None = None

    @classmethod
    def parse(
        cls, nproc_per_node: int | None, nnodes: int, world: int | None, ranks: str | None
    ) -> Self:
        """Returns the shape that the options describe.

        Args:
            nproc_per_node: The number of ranks on each machine.
            nnodes: The number of machines.
            world: The number of all ranks, instead of `nnodes`.
            ranks: The ranks that run, such as "0,64,448", or "distinct".

        Raises:
            InputError: If no job can have these options.
        """
        if world is not None:
            if world < 1:
                raise InputError(f"--world is the number of all ranks, from 1 on, not {world}")
            if nnodes != 1:
                raise InputError("--world is the number of all ranks; it goes without --nnodes")
            nproc_per_node = nproc_per_node or min(world, _ON_A_NODE)
            if world % nproc_per_node:
                raise InputError(f"{world} ranks do not fill machines of {nproc_per_node}")
            nnodes = world // nproc_per_node
        if nproc_per_node is None:
            if nnodes != 1:
                raise InputError("a job of several nodes takes the number of processes on each")
            if ranks is not None:
                raise InputError("--ranks goes with --world or --nproc-per-node")
            return cls()
        if nproc_per_node < 1 or nnodes < 1:
            raise InputError("a job has at least 1 node, and 1 process on each")
        count = nproc_per_node * nnodes
        chosen = _chosen(ranks, count)
        running = count if chosen is None else len(chosen)
        if (chosen != DISTINCT and running > _MOST_RUNNING) or count > _MOST_RANKS:
            raise InputError(
                f"at most {_MOST_RUNNING} processes run here, not {running}; "
                "--ranks distinct runs one of each role"
            )
        if ranks is None and nnodes > 1 and count > _MOST_UNASKED:
            raise InputError(
                f"{count} ranks would be {count} processes here; --ranks distinct runs one of each "
                "role, --ranks all runs all"
            )
        return cls(nproc_per_node, nnodes, chosen)


def _chosen(ranks: str | None, count: int) -> list[int] | Literal["distinct"] | None:
    if ranks is None or ranks == "all":
        return None
    if ranks == DISTINCT:
        return DISTINCT
    numbers = ranks.split(",")
    if not all(each.strip().isdecimal() and int(each) < count for each in numbers):
        raise InputError(
            f"ranks are numbers below {count}, as 0,64,448, or distinct, not {ranks!r}"
        )
    return sorted({int(each) for each in numbers})
