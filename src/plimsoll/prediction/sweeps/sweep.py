"""Runs many predictions and replays on several cards and configurations."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.base.errors import InputError
from plimsoll.base.systems import require_linux
from plimsoll.base.workers.done import NO_ANSWER
from plimsoll.base.workers.everywhere import cores, run_all, where
from plimsoll.prediction.sweeps.best_rows import check_prices
from plimsoll.prediction.sweeps.case_runs import prepared, run_case
from plimsoll.prediction.sweeps.parts import Row
from plimsoll.prediction.sweeps.prices import read_prices
from plimsoll.prediction.sweeps.program_digest import ProgramDigests
from plimsoll.prediction.sweeps.results import Sweep
from plimsoll.prediction.sweeps.results_file import ResultsFile, is_sound
from plimsoll.prediction.sweeps.sweep_plan import SweepPlan
from plimsoll.torch.building.compiler import build
from plimsoll.torch.simulated.library import SIMULATED_GPU

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    Progress = Callable[[Row, int, int], None]


def sweep(
    plan: str | PathLike[str] | Mapping[str, Any],
    *,
    results: str | PathLike[str] | None = None,
    processes: int | None = None,
    address: str | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Predicts scripts and replays recordings, on each card and with each setting of a plan.

    Each row is the result of `predict` or `replay`. A table keeps the finished rows, and the next
    sweep reuses them. The next sweep runs a case again if one of these has changed:

    - the case itself
    - its script or recording
    - a module that the script imports from its own folder or PYTHONPATH
    - the version of plimsoll, PyTorch or the serving engine

    plimsoll does not notice changes of other files that a script reads, or of other installed
    packages. The row of a failed case has the reason, and the next sweep tries the case again.

    >>> import plimsoll
    >>> plan = {"scripts": ["train.py"], "gpus": ["L4", "H100"], "vary": {"--batch-size": [4, 8]}}
    >>> found = plimsoll.sweep(plan)  # doctest: +SKIP
    >>> [(row.case.gpu, row.case.arguments, row.fits) for row in found.rows]  # doctest: +SKIP

    Args:
        plan: A TOML file, or its contents as a mapping; see docs/how-to/which-card.md.
        results: The file of the table, .parquet. The default is a file beside the plan's file. If
            the plan is a mapping, there is no table by default.
        processes: The number of parallel cases on this machine. The default is one for each core.
            A job takes a core for each of its ranks.
        address: The address of a Ray cluster that runs the cases. Each machine of the cluster needs
            plimsoll, and the scripts and recordings at the same paths as on this machine.
        progress: A function that is called after each case with the case's row, the number of
            finished rows, and the total number of rows.

    Raises:
        InputError: If the plan, a script, a card or a setting cannot be used. This is checked
            before any case runs.
    """
    if isinstance(plan, Mapping):
        read = SweepPlan.parse(plan)
    else:
        read = SweepPlan.read(plan)
        results = Path(plan).with_suffix(".parquet") if results is None else results
    return run_plan(read, results, processes=processes, address=address, progress=progress)


def processes_of(plan: SweepPlan, processes: int | None) -> int | None:
    """Returns how many cases to run at the same time; None means one for each core.

    If `processes` is None and the cases are jobs, divides the number of cores by the number of
    ranks, because each rank takes a core.
    """
    if processes is not None or plan.ranks == 1:
        return processes
    return max(1, cores() // plan.ranks)


def run_plan(
    plan: SweepPlan,
    results: str | PathLike[str] | None,
    *,
    processes: int | None = None,
    address: str | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Runs the cases of `plan`, and returns the sweep. For the arguments, see `sweep`.

    Without `results`, no table is kept.
    """
    processes = processes_of(plan, processes)
    prices = {} if plan.prices is None else read_prices(plan.prices)
    if plan.goal == "least-cost":
        if plan.prices is None:
            raise InputError("the goal least-cost needs 'prices', a file with prices of cards")
        check_prices([case.gpu for case in plan.cases() if case.gpu], prices, plan.prices)
    if plan.scripts:
        require_linux("a prediction")
    digests = ProgramDigests()
    runs = [prepared(case, digests) for case in plan.cases()]
    kept = None if results is None else ResultsFile(results)
    rows: dict[str, Row] = {}
    for run in runs:
        if kept is not None and (row := kept.done(run.key)) is not None:
            rows[run.key] = row
    reused = len(rows)
    waiting = [run for run in runs if run.key not in rows]
    if any(run.request is not None for run in waiting):
        build(SIMULATED_GPU)  # once, before several workers need it at the same time
    with (
        nullcontext() if kept is None else kept,
        closing(
            run_all(run_case, waiting, result_type=Row, processes=processes, address=address)
        ) as ended,  # type: ignore[type-var]
    ):
        for done in ended:
            run = waiting[done.index]
            row = done.result or Row(run.case, run.key, done.error)
            if row.key != run.key or not is_sound(row):
                row = Row(run.case, run.key, f"the process that worked on it {NO_ANSWER}")
            rows[row.key] = row
            if kept is not None:
                kept.keep(row)
            if progress is not None:
                progress(row, len(rows), len(runs))
    return Sweep(
        goal=plan.goal,
        rows=[rows[run.key] for run in runs],
        cases=len(runs),
        reused=reused,
        where=where(processes=processes, address=address),
        prices=prices,
    )
