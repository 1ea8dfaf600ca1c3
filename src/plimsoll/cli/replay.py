"""`plimsoll replay`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plimsoll.base.endings import SNAPSHOTS, TRACES
from plimsoll.base.files import check_can_be_made
from plimsoll.base.json_text import json_line
from plimsoll.base.printable import printable
from plimsoll.cli.options import PlanToFollow, ReadMemory, RulesOf
from plimsoll.cli.plans import PlanToWrite, tell_difference, wrote_plan
from plimsoll.cli.progress import Progress
from plimsoll.cli.terminal import hint, show

if TYPE_CHECKING:
    from plimsoll.engine.replays.parts import ReplayResult
    from plimsoll.recordings.recording import Recording


def replay(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help=f"Snapshots ({', '.join(SNAPSHOTS)}) or traces ({', '.join(TRACES)}).",
        ),
    ],
    allocator: Annotated[
        str,
        typer.Option(
            help="The allocator: native (follows PyTorch's rules), elastic (plimsoll's own) or "
            "uncached (each request calls the driver).",
            metavar="NAME",
        ),
    ] = "native",
    conf: Annotated[
        list[str] | None,
        typer.Option(
            help="The allocator's settings, as in PYTORCH_CUDA_ALLOC_CONF. Repeat --conf to "
            "compare settings.",
            metavar="SETTINGS",
            show_default="the recorded ones",
        ),
    ] = None,
    limit: Annotated[
        str | None,
        typer.Option(help="The most memory that the allocator may reserve.", metavar="SIZE"),
    ] = None,
    gpu_memory: Annotated[
        str | None, typer.Option(help="The memory of the simulated card.", metavar="SIZE")
    ] = None,
    dedicated: Annotated[
        str | None,
        typer.Option(
            help="With --shared: how much of the card's memory is filled before requests go to "
            "host memory.",
            metavar="SIZE",
        ),
    ] = None,
    shared: Annotated[
        str | None,
        typer.Option(help="The most host memory that the program may spill into.", metavar="SIZE"),
    ] = None,
    version: RulesOf = None,
    plan: PlanToFollow = None,
    write_plan: PlanToWrite = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite the file of --write-plan if the file exists.")
    ] = False,
    read_memory: ReadMemory = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object for each replay, one on each line.")
    ] = False,
) -> None:
    """Replay recorded memory events under other allocator settings and card sizes.

    A recording is a file that plimsoll run --record wrote, or that
    torch.cuda.memory._dump_snapshot() wrote after torch.cuda.memory._record_memory_history(). If
    you change no settings, plimsoll checks every address of the replay against the recording.

    --write-plan writes a plan: the best address of each large tensor. Later runs of the same
    program can follow the plan with the elastic allocator. For the plan of a job, give the
    recordings of all ranks.

    Exit status: 0 the program fits; 1 it does not fit, or an address differs from the recording; 2
    bad input.
    """
    from plimsoll.engine.plans.making import plan_of, program_of
    from plimsoll.engine.plans.plan_file import read_plan
    from plimsoll.engine.replays.replay import replay as run
    from plimsoll.engine.replays.text import replays_text
    from plimsoll.recordings.reading import read_recording

    if write_plan is not None:
        check_can_be_made(write_plan, force=force)
    given = None if plan is None else read_plan(plan)
    fits = True
    differs = False
    recordings: list[Recording] = []
    for number, path in enumerate(files):
        with Progress(f"reading {path}"):
            recording = read_recording(path, memory=read_memory)
        if write_plan is not None:
            recordings.append(recording)
        if given is not None and plan is not None:
            tell_difference(given, plan, program_of(recording))
        for problem in recording.problems:
            print(printable(f"note: {path}: {problem}"), file=sys.stderr)
        results: list[ReplayResult] = []
        any_fits = False
        confs: list[str | None] = [*conf] if conf else [None]
        for one in confs:
            with Progress(f"replaying {one or path}") as progress:
                ran = run(
                    recording,
                    allocator=allocator,  # type: ignore[arg-type]
                    conf=one,
                    limit=limit,
                    gpu_memory=gpu_memory,
                    dedicated=dedicated,
                    shared=shared,
                    version=version,
                    plan=given,
                    progress=progress.reach,
                )
            results += ran
            any_fits = any_fits or all(result.fits for result in ran)
        ignored = {entry for result in results for entry in result.conf_without_effect}
        for key, reason in sorted(ignored):
            print(printable(f"note: {key} has no effect here: {reason}"), file=sys.stderr)
        if as_json:
            for result in results:
                print(json_line(result.to_dict()))
        else:
            if number:
                print()
            show(partial(replays_text, results), "yes" if any_fits else "no")
        fits = fits and any_fits
        differs = differs or any(result.matches_recording is False for result in results)
    if write_plan is not None:
        told = wrote_plan(plan_of(recordings), write_plan, force=force)
        print(told, file=sys.stderr if as_json else sys.stdout)
    elif not as_json:
        follow = ["--conf", "", "--conf", "expandable_segments:True"]
        if conf and len(conf) > 1:
            follow = ["--limit", "24GiB"]
        hint(["plimsoll", "replay", str(files[0]), *follow])
    if not fits or differs:
        raise typer.Exit(1)
