"""A plan: the place of each large request, and the program that the plan was made for."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.base.errors import InputError
from plimsoll.base.units import format_count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll import _core


@dataclass(frozen=True)
class MadeFor:
    """The program that a plan was made for; None means unknown.

    Attributes:
        script: The name of the script's file or module, without the folder.
        arguments: The script's arguments.
        torch: The version of PyTorch, such as "2.11".
        gpu: The card's name.
    """

    script: str | None = None
    arguments: tuple[str, ...] | None = None
    torch: str | None = None
    gpu: str | None = None

    def difference(self, program: MadeFor) -> str | None:
        """Returns one line that says how this program differs from `program`.

        Returns None if all values that are known of both programs agree.

        Args:
            program: The program that is to follow the plan.
        """
        pairs = [
            (self.command(), program.command(), "{}"),
            (self.torch, program.torch, "PyTorch {}"),
            (self.gpu, program.gpu, "{}"),
        ]
        if self.script is None or program.script is None:
            del pairs[0]
        parts = [
            f"for {form.format(mine)}, not {form.format(theirs)}"
            for mine, theirs, form in pairs
            if mine is not None and theirs is not None and mine != theirs
        ]
        return " and ".join(parts) or None

    def command(self) -> str | None:
        """Returns the script and its arguments as a shell takes them."""
        return None if self.script is None else shlex.join([self.script, *(self.arguments or ())])


@dataclass(frozen=True)
class RankPlan:
    """The plans of one process.

    Attributes:
        rank: The process's rank in its job; None for a program of one process.
        devices: The plan of each GPU, by the GPU's number.
    """

    rank: int | None
    devices: Mapping[int, _core.ProgramPlan]


@dataclass(frozen=True)
class Plan:
    """The plans of all processes of a program.

    Attributes:
        made_for: The program that the plans were made for.
        ranks: The plans of its processes, one for each rank.
    """

    made_for: MadeFor
    ranks: tuple[RankPlan, ...]

    def for_process(self, rank: int | None, device: int) -> _core.ProgramPlan | None:
        """Returns the plan of a process on one GPU; None if there is none.

        Args:
            rank: The rank of the process; None counts as rank 0.
            device: PyTorch's number of the GPU.
        """
        of_rank = {each.rank or 0: each for each in self.ranks}.get(rank or 0)
        return None if of_rank is None else of_rank.devices.get(device)

    def __str__(self) -> str:
        plans = [plan for each in self.ranks for plan in each.devices.values()]
        slots = sum(len(slots) for plan in plans for _, slots, _ in plan.streams)
        return f"{format_count(slots, 'place')} for {self.made_for.command() or 'a program'}"


def made_for(
    script: str | None, arguments: tuple[str, ...] | None, torch: str | None, gpu: str | None
) -> MadeFor:
    """Makes a `MadeFor`. Removes the folder from the path of the script."""
    return MadeFor(None if script is None else Path(script).name, arguments, torch, gpu)


def require_elastic(allocator: str) -> None:
    """Checks that an allocator can follow a plan; only the elastic allocator can.

    Raises:
        InputError: If the allocator is not "elastic".
    """
    if allocator != "elastic":
        raise InputError(
            f"a plan is for the elastic allocator, not {allocator}: add --allocator elastic"
        )
