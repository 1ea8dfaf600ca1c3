"""Writes plans, and prints notes about plans, for several verbs.

A plan gives addresses to a program's large requests.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plimsoll.base.printable import printable

if TYPE_CHECKING:
    from plimsoll.engine.plans.program_plan import MadeFor, Plan

PlanToWrite = Annotated[
    Path | None,
    typer.Option(
        "--write-plan",
        metavar="FILE",
        help="Write a plan to this file: the best address of each large tensor. --plan follows the "
        "plan in later runs.",
    ),
]


def tell_difference(plan: Plan, path: Path, program: MadeFor) -> None:
    """Prints a note if the plan was made for a program other than `program`.

    `program` is the program that will follow the plan.
    """
    if difference := plan.made_for.difference(program):
        print(printable(f"note: {path} is a plan {difference}"), file=sys.stderr)


def wrote_plan(plan: Plan, path: Path, *, force: bool) -> str:
    """Writes a plan, and returns a line about it for the user.

    Raises:
        InputError: If the plan cannot be written.
    """
    from plimsoll.engine.plans.plan_file import write_plan

    write_plan(plan, path, force=force)
    return f"plan: {path}, {plan}"
