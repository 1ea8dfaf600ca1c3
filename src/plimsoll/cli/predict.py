"""`plimsoll predict`."""

from __future__ import annotations

import shlex
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plimsoll.cli.options import (
    DEFAULT_GPU,
    Allocator,
    Arguments,
    AtMostEvents,
    BatchSize,
    Conf,
    Dedicated,
    Driver,
    Gpu,
    Gpus,
    HostMemory,
    KeepWrites,
    Model,
    Module,
    Nnodes,
    NoScript,
    NprocPerNode,
    Policy,
    Ranks,
    RecipeName,
    SaveRecipe,
    SeqLen,
    Shared,
    Unknown,
    Used,
    Values,
    World,
)
from plimsoll.cli.program import Program, chosen_program
from plimsoll.errors import InputError
from plimsoll.json_text import json_line
from plimsoll.printable import printable
from plimsoll.units import format_size

if TYPE_CHECKING:
    from plimsoll.prediction import Prediction


def predict(
    script: NoScript = None,
    arguments: Arguments = None,
    module: Module = False,
    model: Model = None,
    recipe: RecipeName = None,
    batch_size: BatchSize = None,
    seq_len: SeqLen = None,
    save_recipe: SaveRecipe = None,
    gpu: Gpu = None,
    gpus: Gpus = None,
    nproc_per_node: NprocPerNode = None,
    nnodes: Nnodes = 1,
    world: World = None,
    ranks: Ranks = None,
    driver: Driver = "linux",
    conf: Conf = "",
    allocator: Allocator = "native",
    policy: Policy = None,
    dedicated: Dedicated = None,
    used: Used = None,
    shared: Shared = None,
    host_memory: HostMemory = None,
    values: Values = "auto",
    unknown: Unknown = "balanced",
    at_most_events: AtMostEvents = None,
    keep_writes: KeepWrites = False,
    check: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Hold the prediction against a recording of the script."),
    ] = None,
    plot: Annotated[
        bool, typer.Option("--plot", help="Draw memory over the run, below the answer.")
    ] = False,
    view: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the page of plimsoll view for the run, .html."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite these files.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One object a card, one a line.")] = False,
) -> None:
    """Run a CUDA script where there is no GPU, and say what memory it will need.

    Without a script: --model and --recipe run one that comes with plimsoll.

    The script's own output goes to stderr, once: that of further runs is shown only where one
    fails. What it writes is thrown away, and listed.

    Exit status 1: it does not fit, or with --check a peak is off by more than 2 %. 2: bad input, or
    the script fails.
    """
    from plimsoll.prediction.options import Options
    from plimsoll.prediction.predict import predict_request
    from plimsoll.prediction.predicted_page import check_page, recorded, write_page
    from plimsoll.prediction.recording_check import check_request, recorded_gpu
    from plimsoll.recordings import read_recording

    if check is not None and (plot or view is not None):
        raise InputError("--plot and --view are of a prediction; leave out --check")
    if plot and as_json:
        raise InputError("--plot is for people; with --json the timeline is in the answer")
    recording = None if check is None else read_recording(check)
    if recording is not None and not gpu and (name := recorded_gpu(recording)) is not None:
        gpu = [name]
    program = chosen_program(
        script, arguments, module=module, model=model, recipe=recipe, batch_size=batch_size,
        seq_len=seq_len, save_recipe=save_recipe, force=force,
        is_job=nproc_per_node is not None or world is not None,
    )  # fmt: skip
    requests = [
        Options(
            name, gpus, driver, conf, allocator, policy, dedicated, shared, host_memory,
            values, unknown, at_most_events, keep_writes, nproc_per_node, nnodes,
            world, ranks, used,
        ).request(program.script, program.arguments, is_module=module)
        for name in gpu or [DEFAULT_GPU]
    ]  # fmt: skip  # what is wrong is said before the first run
    if view is not None:
        check_page(requests, view, force=force)
    program = program.saved(save_recipe, force=force)
    requests = [replace(request, script=program.script) for request in requests]
    if recording is not None:
        if len(requests) > 1:
            raise InputError("--check is for one card, that of the recording")
        checked = check_request(requests[0], recording)
        print(json_line(checked.to_dict()) if as_json else checked)
        if not checked.matches:
            raise typer.Exit(1)
        return
    with nullcontext(requests) if view is None else recorded(requests) as asked:
        results = [predict_request(request, shows_output=request is asked[0]) for request in asked]
        if as_json:
            for result in results:
                print(json_line(result.to_dict()))
        else:
            _show(results, program, plots=plot)
        if view is not None:
            page = write_page(asked, results, view, force=force)
            print(f"\n{page}", file=sys.stderr if as_json else sys.stdout)
    if not all(result.fits for result in results):
        raise typer.Exit(1)


def _show(results: list[Prediction], program: Program, *, plots: bool) -> None:
    first = results[0]
    if len(results) == 1 or not first.uses_cuda:
        print(first)
    else:
        _show_table(results)
    if plots:
        _show_plot(results)
    if first.uses_cuda and sys.stderr.isatty():
        words = ["plimsoll", "fit", *program.words, "--vary=--batch-size", "--gpu", first.gpu]
        print(printable(f"next: {shlex.join(words)}"), file=sys.stderr)


def _show_plot(results: list[Prediction]) -> None:
    from rich.console import Console

    from plimsoll.prediction.axes import IN_A_PIPE
    from plimsoll.prediction.plot import Picture, plot

    pictures = [
        Picture(
            result.gpu if result.worst_rank is None else f"Rank {result.worst_rank}, {result.gpu}",
            result.timeline,
            result.room_bytes,
        )
        for result in results
        if result.timeline is not None
    ]
    if pictures:
        console = Console(soft_wrap=True, width=None if sys.stdout.isatty() else IN_A_PIPE)
        console.print()
        console.print(plot(pictures, console.width))


def _show_table(results: list[Prediction]) -> None:
    from rich.console import Console
    from rich.table import Table

    from plimsoll.prediction.text import whose_line

    if (line := whose_line(results[0])) is not None:
        print(line)

    table = Table(box=None, pad_edge=False)
    table.add_column("card")
    for name in ("memory", "allocated", "reserved", "needs", "headroom"):
        table.add_column(name, justify="right")
    table.add_column("fits")
    for result in results:
        table.add_row(
            result.gpu,
            format_size(result.total_bytes),
            format_size(result.peak_allocated_bytes),
            format_size(result.peak_reserved_bytes),
            format_size(result.device_used_bytes),
            ("-" if result.headroom_bytes < 0 else "") + format_size(abs(result.headroom_bytes)),
            "yes" if result.fits else "no",
        )
    console = Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else 120)
    console.print(table)
