"""`plimsoll view`."""

from __future__ import annotations

import sys
import webbrowser
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plimsoll.base.endings import SNAPSHOTS, TRACES
from plimsoll.base.errors import InputError
from plimsoll.base.json_text import json_line
from plimsoll.base.layout import paragraphs
from plimsoll.base.printable import printable
from plimsoll.base.units import format_size
from plimsoll.cli.options import Address, RankPattern, ReadMemory
from plimsoll.cli.progress import Progress
from plimsoll.cli.terminal import hint, show

if TYPE_CHECKING:
    from plimsoll.page.server import PageServer
    from plimsoll.recordings.recording import Recording


def view(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE|DIR",
            help=f"A snapshot ({', '.join(SNAPSHOTS)}), a trace ({', '.join(TRACES)}), or a "
            "folder with one file for each rank. The folder may be an s3:// or gs:// address.",
        ),
    ],
    other: Annotated[
        Path | None,
        typer.Argument(metavar="OTHER", help="Another recording, to show side by side."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The file to write.",
            metavar="FILE",
            show_default="beside the recording",
        ),
    ] = None,
    serve: Annotated[
        bool,
        typer.Option("--serve", help="Serve the page from this machine, with every detail."),
    ] = False,
    export: Annotated[
        str | None,
        typer.Option(
            help="Instead of the page, write a file of this kind, such as perfetto or csv. For "
            "any other KIND, plimsoll prints the list of kinds.",
            metavar="KIND",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite the output file if the file exists.")
    ] = False,
    open_page: Annotated[
        bool, typer.Option("--open", help="Open the page in a browser, if stderr is a terminal.")
    ] = False,
    rank_pattern: RankPattern = None,
    address: Address = None,
    read_memory: ReadMemory = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object about the written file.")
    ] = False,
) -> None:
    """Show a recording, or two side by side, as one page that needs no network.

    The page shows live memory over time, the card's address space at any moment, and every block
    with its call stack. Press ? on the page to list its keys. For a folder, the page shows all
    ranks over time. On that page you can open the ranks that differ from the others. With --serve,
    you can open every rank.
    """
    if serve and (export or output):
        raise InputError("--serve writes no file: leave out --export and -o")
    if export and other:
        raise InputError("--export takes one recording at a time")
    opens = open_page and sys.stderr.isatty()
    if open_page and not opens:
        print("note: --open opened nothing, because stderr is no terminal", file=sys.stderr)
    from plimsoll.explanation.ranks.rank_files import is_folder
    from plimsoll.recordings.reading import read_recording

    if is_folder(file):
        if other is not None or export is not None:
            raise InputError(f"{file} is a folder: OTHER and --export go with one recording")
        _view_ranks(
            file, output, serve=serve, force=force, opens=opens, as_json=as_json,
            given={"pattern": rank_pattern, "memory": read_memory, "address": address},
        )  # fmt: skip
        return
    if rank_pattern is not None or address is not None:
        raise InputError(f"--rank-pattern and --address go with a folder, and {file} is none")
    with Progress(f"reading {file}") as progress:
        first = read_recording(file, memory=read_memory)
        if other is not None:
            progress.now(f"reading {other}")
        second = None if other is None else read_recording(other, memory=read_memory)
    if serve:
        _serve(first, second, opens=opens, as_json=as_json)
    elif export:
        _export(first, export, output, force=force, as_json=as_json)
    else:
        from plimsoll.page.page_file import view as write

        with Progress(f"writing the page of {file}"):
            result = write(first, second, output=output, force=force)
        if as_json:
            print(json_line(result.to_dict()))
        else:
            show(partial(paragraphs, [str(result).splitlines()]))
            hint(["plimsoll", "explain", str(file)])
        if opens:
            webbrowser.open(Path(result.page).absolute().as_uri())


def _view_ranks(
    folder: str, output: Path | None, *, serve: bool, force: bool, opens: bool, as_json: bool,
    given: dict[str, str | None],
) -> None:  # fmt: skip
    from plimsoll.explanation.ranks.view_ranks import serve_ranks, view_ranks

    with Progress(f"reading the recordings in {folder}") as progress:
        if serve:
            server = serve_ranks(folder, progress=progress.reach, **given)
        else:
            result = view_ranks(
                folder, output=output, force=force, progress=progress.reach, **given
            )
    if serve:
        _run_server(server, opens=opens, as_json=as_json)
        return
    if as_json:
        print(json_line(result.to_dict()))
    else:
        show(partial(paragraphs, [str(result).splitlines()]))
        hint(["plimsoll", "explain", folder])
    if opens:
        webbrowser.open(Path(result.page).absolute().as_uri())


def _export(
    recording: Recording, kind: str, output: Path | None, *, force: bool, as_json: bool
) -> None:
    from plimsoll.page.exports import EXPORTS, export

    with Progress(f"writing {kind}"):
        written = export(recording, kind, output, force=force)
    size = written.stat().st_size
    if as_json:
        print(json_line({"export": kind, "file": str(written), "file_bytes": size}))
    else:
        print(f"{printable(str(written))}: {format_size(size)}")
    step = EXPORTS[kind].next_step or f"plimsoll view {recording.name}"
    if not as_json and sys.stderr.isatty():
        print(printable(f"next: {step.replace('{file}', str(written))}"), file=sys.stderr)


def _serve(recording: Recording, other: Recording | None, *, opens: bool, as_json: bool) -> None:
    from plimsoll.page.server import serve

    _run_server(serve(recording, other), opens=opens, as_json=as_json)


def _run_server(server: PageServer, *, opens: bool, as_json: bool) -> None:
    print(json_line({"url": server.url}) if as_json else server.url, flush=True)
    if not as_json and sys.stderr.isatty():
        print("Ctrl+C ends it.", file=sys.stderr)
    with ExitStack() as stack:
        if opens:
            webbrowser.open(stack.enter_context(server.opening_file()).as_uri())
        with suppress(KeyboardInterrupt):
            server.serve_forever()
