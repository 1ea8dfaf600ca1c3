"""`plimsoll sweep`."""

from __future__ import annotations

import shlex
import sys
from contextlib import redirect_stdout
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plimsoll.base.errors import InputError
from plimsoll.base.printable import printable
from plimsoll.base.units import format_count, format_size
from plimsoll.cli.progress import Progress
from plimsoll.cli.terminal import NOT_KNOWN, console, hint, show

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plimsoll.prediction.recipes.served import Engine
    from plimsoll.prediction.sweeps.parts import Row
    from plimsoll.prediction.sweeps.results import Sweep
    from plimsoll.prediction.sweeps.sweep_plan import SweepPlan

_LISTS = {"gpu": "gpus", "conf": "confs", "allocator": "allocators"}


def sweep(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="PLAN.toml | FILE",
            help="A file with a plan of all cases. Or scripts and recordings, which plimsoll tries "
            "with each value of --vary. Or the command vllm serve MODEL.",
        ),
    ],
    vary: Annotated[
        list[str] | None,
        typer.Option(
            help="A setting and the values to try, as in --vary gpu=H100,L4, --vary conf='a:1;b:2' "
            "or --vary allocator=native,elastic. NAME may be an argument of the scripts, as in "
            "--vary=--batch-size=4,8. Repeat --vary for more settings.",
            metavar="NAME=A,B",
        ),
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Option(
            help="The scripts' arguments, quoted as one string. Repeat --arguments to "
            "try other arguments too.",
            metavar="ARGS",
        ),
    ] = None,
    nproc_per_node: Annotated[
        int | None,
        typer.Option(
            help="Run each script as a job with this number of processes on each machine, as "
            "torchrun does.",
            metavar="N",
        ),
    ] = None,
    nnodes: Annotated[
        int | None,
        typer.Option(help="How many machines a job has.", metavar="N", show_default="1"),
    ] = None,
    goal: Annotated[
        str | None,
        typer.Option(
            help="The first line names the best case. It is best by: least-memory (it needs "
            "the least memory), fits (it fits the smallest card), most-samples (it makes the most "
            "samples per second) or least-cost (it costs the least, by --prices).",
            metavar="NAME",
            show_default="the plan's goal; otherwise least-memory for one card, fits for several",
        ),
    ] = None,
    prices: Annotated[
        Path | None,
        typer.Option(
            help="A .toml or .csv file with the hourly price of one card of each kind. A case "
            "costs as much as all its cards together.",
            metavar="FILE",
        ),
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(
            help="The .parquet file that keeps the finished cases.",
            show_default="a file beside the plan; without a plan, sweep.parquet",
            metavar="FILE",
        ),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            help="How many cases run at the same time on this machine.",
            metavar="N",
            show_default="one for each core; for jobs, the cores divided by the ranks",
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="Run the cases on the Ray cluster at this address, HOST:PORT.", metavar="ADDRESS"
        ),
    ] = None,
    picture: Annotated[
        bool, typer.Option("--picture", help="Draw a bar for each case below the table.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(help="Write the table and the picture to this .html file.", metavar="FILE"),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite the file of --html if the file exists.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Predict the memory of scripts, or replay recordings, on many cards and configurations.

    For an engine, put `vllm serve MODEL` with its options last. Each case then runs the engine
    under a load of requests. The options --requests, --input-len and --output-len, after MODEL, set
    this load.

    plimsoll keeps the results of finished cases in a file. If you run the command again, plimsoll
    runs only the other cases.

    Exit status: 0 every script and recording fits in at least one case; 1 a script or recording
    fits in no case; 2 bad input, or every case ends with an error; 3 plimsoll cannot tell for a
    script or recording; 130 interrupted.
    """
    from plimsoll.base.endings import check_ending
    from plimsoll.base.files import NewFile, check_can_be_made
    from plimsoll.base.workers.everywhere import where
    from plimsoll.prediction.not_kept import tell
    from plimsoll.prediction.sweeps.case_bars import case_bars
    from plimsoll.prediction.sweeps.html import sweep_page
    from plimsoll.prediction.sweeps.sweep import processes_of, run_plan
    from plimsoll.prediction.sweeps.text import sweep_text

    job = {"nproc_per_node": nproc_per_node, "nnodes": nnodes}
    shape = {name: value for name, value in job.items() if value is not None}
    plan, kept = _plan(what, vary or [], arguments or [], goal, prices, shape)
    processes = processes_of(plan, processes)
    kept = results or kept
    if html is not None:
        check_ending(html, ".html", ".htm", what="a page")
        check_can_be_made(html, force=force)
    # Ray prints to stdout which of its workers died. stdout is for the answer alone.
    with Progress("sweep") as progress, redirect_stdout(sys.stderr):
        place = where(processes=processes, address=address)
        progress.say(f"{place}; {kept} keeps the finished cases")

        def show_row(row: Row, done: int, total: int) -> None:
            progress.reach(done, total)
            progress.say(f"{done} of {total}: {row.case.title}: {_outcome(row)}")

        try:
            found = run_plan(plan, kept, processes=processes, address=address, progress=show_row)
        except KeyboardInterrupt:
            if kept.exists():
                _say_what_is_kept(kept, "run the command again to continue from there")
            raise
    if html is not None:
        with NewFile(html, force=force) as file:
            file.write(sweep_page(found).encode())
    fits = _fits(found)
    tell(found.not_kept)
    if as_json:
        print(found.to_json())
    else:
        show(partial(sweep_text, found), "yes" if fits else "no")
        if picture:
            to = console()
            to.print()
            to.print(case_bars(found, to.width))
        if not picture:
            again = _again(vary, results, shape)
            hint(["plimsoll", "sweep", "--picture", *again, *map(str, what)])
    if failed := sum(row.error is not None for row in found.rows):
        cases = format_count(failed, "failed case")
        _say_what_is_kept(kept, f"run the same command to try the {cases} again")
    elif found.rows:
        _say_what_is_kept(kept, "if you add cases, plimsoll runs only the new ones")
    if found.rows and all(row.error is not None for row in found.rows):
        raise typer.Exit(2)
    if not fits:
        raise typer.Exit(NOT_KNOWN if _fits(found, or_unknown=True) else 1)


def _say_what_is_kept(results: Path, then: str) -> None:
    print(printable(f"{results} has the finished cases; {then}"), file=sys.stderr)


def _again(vary: Sequence[str] | None, results: Path | None, shape: Mapping[str, int]) -> list[str]:
    job = [[f"--{name.replace('_', '-')}", str(value)] for name, value in shape.items()]
    return [
        *chain.from_iterable(job),
        *(f"--vary={one}" for one in vary or ()),
        *(["--results", str(results)] if results else []),
    ]


def _fits(found: Sweep, *, or_unknown: bool = False) -> bool:
    """Returns whether each program fits in at least one case.

    Args:
        found: The sweep.
        or_unknown: Whether a case also counts if plimsoll cannot tell whether the program fits.
    """
    programs = {row.case.name for row in found.rows}
    return programs == {
        row.case.name
        for row in found.rows
        if row.fits or (or_unknown and row.fits is None and row.error is None)
    }


def _outcome(row: Row) -> str:
    from plimsoll.prediction.sweeps.served_rows import ends_of

    if row.error is not None:
        return f"failed: {row.error}"
    if (ends := ends_of(row)) is not None:
        return ends
    used = format_size(row.device_used_bytes or 0)
    verdicts = {True: "fits", False: "does not fit", None: "plimsoll cannot tell whether it fits"}
    return f"{used}, {verdicts[row.fits]}"


def _plan(
    what: Sequence[str],
    vary: Sequence[str],
    arguments: Sequence[str],
    goal: str | None,
    prices: Path | None,
    shape: Mapping[str, int],
) -> tuple[SweepPlan, Path]:
    """Returns the sweep's plan, from a file or the command line, and the path of its results.

    `shape` has the values of --nproc-per-node and --nnodes, as far as they are given.
    """
    from dataclasses import replace

    from plimsoll.base.script_file import is_stream
    from plimsoll.prediction.recipes.served import engine_of
    from plimsoll.prediction.sweeps.sweep_plan import SweepPlan
    from plimsoll.recordings.reading import is_recording

    own = {} if goal is None else {"goal": goal}
    own |= {} if prices is None else {"prices": str(prices)}
    first = Path(what[0])
    if first.suffix.lower() == ".toml":
        if len(what) > 1 or vary or arguments or shape:
            raise InputError(
                "a plan names all that is swept: leave out the plan, or what is beside it"
            )
        plan = SweepPlan.read(first)
        plan = replace(plan, goal=goal or plan.goal, prices=own.get("prices", plan.prices))
        return plan.checked(), first.with_suffix(".parquet")
    values: dict[str, Any] = {**own, **shape}
    if engine := engine_of(what[0], what[1:], module=False):
        return _serving_plan(engine, list(what[2:]), arguments, values, vary)
    if stream := next(filter(is_stream, what), None):
        raise InputError(f"{stream}: can be read once only, and a sweep reads it again and again")
    files = [str(Path(each)) for each in what]
    recordings = [each for each in files if is_recording(Path(each))]
    scripts = [each for each in files if each not in recordings]
    values |= {"scripts": scripts} if scripts else {}
    values |= {"recordings": recordings} if recordings else {}
    values |= {"arguments": list(arguments)} if arguments else {}
    return _varied(values, vary)


def _serving_plan(
    engine: Engine,
    own: list[str],
    arguments: Sequence[str],
    values: dict[str, Any],
    vary: Sequence[str],
) -> tuple[SweepPlan, Path]:
    """Returns the plan for a serving engine, and the path of its results.

    `own` has the words after `serve`.
    """
    from plimsoll.prediction.recipes.served import check_engine

    if arguments:
        raise InputError("--arguments is for scripts; options of an engine stand behind `serve`")
    check_engine(engine, own)
    values |= {"scripts": [str(engine.script)], "arguments": [shlex.join(own)]}
    return _varied(values, vary)


def _varied(values: dict[str, Any], vary: Sequence[str]) -> tuple[SweepPlan, Path]:
    """Returns the plan with the values of --vary added, and the path of its results."""
    from plimsoll.prediction.sweeps.sweep_plan import SweepPlan

    for one in vary:
        name, is_given, text = one.partition("=")
        if not is_given or (not name.startswith("-") and name not in _LISTS):
            raise InputError(
                f"--vary is {', '.join(_LISTS)} or an argument of the scripts, as in gpu=H100,L4 "
                f"or --batch-size=4,8, not {one!r}"
            )
        found = text.split(";" if name == "conf" else ",")
        if name in _LISTS:
            values[_LISTS[name]] = [*values.get(_LISTS[name], []), *found]
        else:
            values.setdefault("vary", {})[name] = found
    return SweepPlan.parse(values), Path("sweep.parquet")
