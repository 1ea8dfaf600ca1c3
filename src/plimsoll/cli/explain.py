"""`plimsoll explain`."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from plimsoll.base.errors import InputError
from plimsoll.base.json_text import json_line
from plimsoll.cli.options import Address, RankPattern, ReadMemory, RulesOf
from plimsoll.cli.progress import Progress
from plimsoll.cli.terminal import hint, show


def explain(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE|DIR|PID",
            help="A snapshot, a trace, the PID of a running process, or a folder with one file for "
            "each rank. The folder may be an s3:// or gs:// address.",
        ),
    ],
    device: Annotated[
        int | None,
        typer.Option(
            help="The number of the GPU to explain.",
            metavar="N",
            show_default="a GPU that ran out of memory; without one, the fullest GPU",
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(help="The card that the program ran on, such as H100.", metavar="NAME"),
    ] = None,
    limit: Annotated[
        str | None,
        typer.Option(
            help="A limit for reserved memory, as in 6GiB. The answer's first line then says "
            "whether the program fits in this limit.",
            show_default="as recorded",
            metavar="SIZE",
        ),
    ] = None,
    version: RulesOf = None,
    advice: Annotated[
        bool,
        typer.Option(
            "--advice/--no-advice", help="Search for changes that save memory, or skip this search."
        ),
    ] = True,
    search_events: Annotated[
        int | None,
        typer.Option(
            help="How many memory events the search for advice may replay at most; 0 turns the "
            "search off.",
            show_default="400 million",
            metavar="N",
        ),
    ] = None,
    script: Annotated[
        Path | None,
        typer.Option(
            help="The script that was recorded. plimsoll then also tries changes to the script, on "
            "a simulated card.",
            metavar="FILE",
        ),
    ] = None,
    vary: Annotated[
        str | None,
        typer.Option(
            help="The script's argument for the batch size, such as --batch-size. plimsoll then "
            "also tries half the batch size.",
            metavar="ARGUMENT",
        ),
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGS", help="The script's arguments.")
    ] = None,
    rank_pattern: RankPattern = None,
    address: Address = None,
    read_memory: ReadMemory = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say why a recorded program used its GPU memory: live tensors, free memory, leaks, failures.

    plimsoll lists only advice that it has tried. To try advice, plimsoll replays the recording, or
    runs the script given with --script. For a folder, the answer names the ranks that ran out of
    memory or differ from the others, and groups the ranks that behave alike.

    Exit status: 0 done; 1 the program needs more than --limit; 2 bad input, or the script given
    with --script fails.
    """
    from plimsoll.explanation.ranks.rank_files import is_folder

    if is_folder(source):
        if any(option is not None for option in (device, gpu, limit, version, script, vary)):
            raise InputError(
                f"{source} is a folder: --device, --gpu, --limit, --version and --script go with "
                "one recording"
            )
        _explain_ranks(
            source, pattern=rank_pattern, advice=advice, search_events=search_events,
            memory=read_memory, address=address, as_json=as_json,
        )  # fmt: skip
        return
    if rank_pattern is not None or address is not None:
        raise InputError(f"--rank-pattern and --address go with a folder, and {source} is none")
    from plimsoll.explanation.explain import explain as run
    from plimsoll.explanation.text import explanation_text
    from plimsoll.recordings.reading import read_recording

    if script is None and (vary or arguments):
        raise InputError(
            "--vary and the script's arguments go with --script; explain takes one recording, and "
            "`plimsoll view A B` shows two"
        )
    with Progress(f"reading {source}") as progress:
        found = run(
            int(source)
            if source.isdigit() and not Path(source).exists()
            else read_recording(source, needs_history=False, memory=read_memory),
            device=device, gpu=gpu, limit=limit, version=version, advice=advice,
            search_events=search_events,
            script=None if script is None else str(script), arguments=arguments or [], vary=vary,
            progress=progress.now,
        )  # fmt: skip
    if as_json:
        print(json_line(found.to_dict()))
    else:
        is_bad = bool(found.out_of_memory or found.leaks or found.fits_limit is False)
        show(partial(explanation_text, found), "no" if is_bad else None)
        hint(["plimsoll", "view", source])
    if found.fits_limit is False:
        raise typer.Exit(1)


def _explain_ranks(
    folder: str,
    *,
    pattern: str | None,
    advice: bool,
    search_events: int | None,
    memory: str | None,
    address: str | None,
    as_json: bool,
) -> None:
    from plimsoll.explanation.ranks.explain_ranks import explain_ranks
    from plimsoll.explanation.ranks.text import ranks_text

    reading = Progress(f"reading the recordings in {folder}")
    with reading as progress, redirect_stdout(sys.stderr):  # Ray prints to stdout
        found = explain_ranks(
            folder, pattern=pattern, advice=advice, search_events=search_events, memory=memory,
            address=address, progress=progress.reach,
        )  # fmt: skip
    if as_json:
        print(json_line(found.to_dict()))
    else:
        show(partial(ranks_text, found), "no" if found.outliers else None)
        hint(["plimsoll", "view", folder])
