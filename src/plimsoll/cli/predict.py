"""`plimsoll predict`."""

from __future__ import annotations

import re
import sys
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plimsoll.base.errors import InputError
from plimsoll.base.files import check_can_be_made
from plimsoll.base.json_text import json_line
from plimsoll.base.layout import paragraphs, table
from plimsoll.base.units import format_seconds, format_size
from plimsoll.cli import options
from plimsoll.cli.plans import PlanToWrite, tell_difference, wrote_plan
from plimsoll.cli.program import Program, chosen_program
from plimsoll.cli.progress import Progress
from plimsoll.cli.terminal import NOT_KNOWN, Verdict, console, show

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from plimsoll.prediction.request import Request
    from plimsoll.prediction.results import Prediction

_INTERRUPTED = 130
_BATCH = re.compile(r"--[a-z_-]*batch[a-z_-]*")


@options.takes_simulation(*options.SIMULATION)
def predict(
    script: options.NoScript = None,
    arguments: options.Arguments = None,
    module: options.Module = False,
    model: options.Model = None,
    recipe: options.RecipeName = None,
    batch_size: options.BatchSize = None,
    seq_len: options.SeqLen = None,
    save_recipe: options.SaveRecipe = None,
    gpu: options.Gpu = None,
    *,
    simulation: options.Simulation,
    check: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Compare the prediction with this recording of the script."
        ),
    ] = None,
    advise: Annotated[
        bool,
        typer.Option(
            "--advise", help="Try changes that may save memory. Each try runs the script again."
        ),
    ] = False,
    plot: Annotated[
        bool, typer.Option("--plot", help="Draw memory over time below the answer.")
    ] = False,
    view: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a page about the predicted run to this .html file, as `plimsoll view` does "
            "for a recording.",
        ),
    ] = None,
    write_plan: PlanToWrite = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")] = False,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet",
            help="Print only the verdict, what limits it, the reason and the next command. "
            "plimsoll then shows the script's output only if the script fails.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object for each card, one on each line.")
    ] = False,
) -> None:
    """Run a CUDA script without a GPU, and say how much GPU memory it will need.

    With --model or --recipe instead of SCRIPT, plimsoll runs a script of its own.

    The script's own output goes to stderr. plimsoll discards the files that the script writes, and
    lists them.

    Exit status: 0 the script fits; 1 the script does not fit, or with --check a peak differs by
    more than 2%; 2 bad input, or the script fails; 3 the answer is not known, and the first line
    says why; 130 interrupted while the script still fitted.
    """
    from plimsoll.prediction.check_text import check_text
    from plimsoll.prediction.fitting.advise import with_advice
    from plimsoll.prediction.not_kept import each_once, tell
    from plimsoll.prediction.options import Options
    from plimsoll.prediction.predicted_page import check_page, recorded, write_page
    from plimsoll.prediction.predicted_plan import predicted_plan
    from plimsoll.prediction.recording_check import check_request, recorded_gpu
    from plimsoll.prediction.text import verdict_words
    from plimsoll.recordings.reading import read_recording

    if check is not None and (plot or view is not None or write_plan is not None):
        raise InputError("--plot, --view and --write-plan do not go with --check")
    if plot and as_json:
        raise InputError("--plot is for people; with --json the timeline is in the answer")
    recording = None if check is None else read_recording(check)
    if recording is not None and not gpu and (name := recorded_gpu(recording)) is not None:
        gpu = [name]
    program = chosen_program(
        script, arguments, module=module, model=model, recipe=recipe, batch_size=batch_size,
        seq_len=seq_len, save_recipe=save_recipe, force=force,
        is_job=simulation["nproc_per_node"] is not None or simulation["world"] is not None,
    )  # fmt: skip
    requests = [
        Options(gpu=name, **simulation).request(
            program.script, program.arguments, is_module=program.is_module
        )
        for name in gpu or [options.DEFAULT_GPU]
    ]  # bad options end the command before the first run
    if view is not None:
        check_page(requests, view, force=force)
    if write_plan is not None:
        _check_plan(requests, write_plan, force=force)
    program = program.saved(save_recipe, force=force)
    requests = [replace(request, script=program.script) for request in requests]
    if recording is not None:
        if len(requests) > 1:
            raise InputError("--check takes one card, that of the recording: give one --gpu")
        checked = check_request(requests[0], recording)
        if as_json:
            print(json_line(checked.to_dict()))
        else:
            show(partial(check_text, checked), "yes" if checked.matches else "no")
        if not checked.matches:
            raise typer.Exit(1)
        return
    _tell_plan(requests[0], simulation["plan"])
    keeps_none = view is None and write_plan is None
    with nullcontext(requests) if keeps_none else recorded(requests) as asked:
        results = _predicted(asked, quiet=quiet)
        if advise and _status(results) != _INTERRUPTED:
            results[0] = with_advice(asked[0], results[0])
        tell(each_once(result.not_kept for result in results))
        if as_json:
            for result in results:
                words = verdict_words(result, _follow(result, program))
                print(json_line(result.to_dict() | words))
        else:
            _show(results, program, plots=plot, quiet=quiet)
        if write_plan is not None:
            told = wrote_plan(predicted_plan(asked[0], results[0]), write_plan, force=force)
            print(told, file=sys.stderr if as_json else sys.stdout)
        if view is not None:
            page = write_page(asked, results, view, force=force)
            print(f"\n{page}", file=sys.stderr if as_json else sys.stdout)
    if status := _status(results):
        raise typer.Exit(status)


def _status(results: Sequence[Prediction]) -> int:
    """Returns the exit status.

    The part of an interrupted script that did not run could need more memory. So a script that
    fitted until the interrupt gets status 130, not 0. A script that already did not fit gets status
    1, because the missing part cannot lower the peak.
    """
    from plimsoll.prediction.parts import INTERRUPTED

    if any(result.fits is False for result in results):
        return 1
    if any(result.stopped is not None and result.stopped.why == INTERRUPTED for result in results):
        return _INTERRUPTED
    return NOT_KNOWN if any(result.fits is None for result in results) else 0


def _check_plan(requests: Sequence[Request], output: Path, *, force: bool) -> None:
    """Raises InputError before the first run if --write-plan cannot be obeyed."""
    if len(requests) > 1:
        raise InputError("a plan is for one card; give one --gpu")
    check_can_be_made(output, force=force)


def _tell_plan(request: Request, path: Path | None) -> None:
    """Prints a note if the plan at `path` was made for a program that `request` does not run."""
    if path is None:
        return
    from plimsoll.engine.plans.plan_file import read_plan
    from plimsoll.prediction.predicted_plan import program_of

    tell_difference(read_plan(path), path, program_of(request))


def _predicted(asked: Sequence[Request], *, quiet: bool) -> list[Prediction]:
    """Predicts each request in turn.

    The first prediction shows the script's output. The others show only a progress bar.
    """
    from plimsoll.prediction.predict import predict_request

    results = [predict_request(asked[0], shows_output=not quiet)]
    if len(asked) > 1:
        with Progress(total=len(asked) - 1) as progress:
            for done, request in enumerate(asked[1:]):
                progress.now(f"{request.title} on {request.setup.gpus[0]}")
                progress.reach(done)
                results.append(predict_request(request, shows_output=False))
    return results


def _show(results: list[Prediction], program: Program, *, plots: bool, quiet: bool) -> None:
    from plimsoll.prediction.text import answer_lines, prediction_text, short_text

    first = results[0]
    verdicts: dict[int, Verdict] = {0: "yes", 1: "no"}
    verdict = verdicts.get(_status(results))
    follow = _follow(first, program)
    if quiet and len(results) == 1:
        show(partial(short_text, first, follow=follow), verdict)
    elif len(results) == 1 or not first.uses_cuda:
        show(partial(prediction_text, first, follow=follow), verdict)
    else:
        answer = [*_answer(results)]
        answer[1:1] = answer_lines(first, follow)
        tables = [] if quiet else [_table]
        show(
            lambda width: paragraphs([answer, *(each(results, width) for each in tables)], width),
            verdict,
        )
    if plots:
        _show_plot(results)


def _follow(p: Prediction, program: Program) -> list[str]:
    """Returns the command that the user probably wants next.

    Returns [] if the script came from a stream, because a stream cannot be read again.
    """
    from plimsoll.base.script_file import is_stream

    return [] if is_stream(program.words[-1]) else _next_step(p, program)


def _next_step(p: Prediction, program: Program) -> list[str]:
    """Returns the command that the user probably wants next; [] if there is none.

    If memory grows from step to step, the command records a simulated run. The recording shows the
    line that keeps the memory. If the script does not fit, the command searches for changes that
    make it fit. If the script fits and has an argument for the batch size, the command searches for
    the largest batch. Otherwise the command records a run on a real GPU.
    """
    from plimsoll.prediction.step_growth import growth_bytes

    if p.serving is not None:
        named = program.recipe is None and program.words[0].endswith("vllm")
        return ["plimsoll", "fit", "--gpu", p.gpu, *program.words] if named and not p.fits else []
    if growth_bytes(p.step_peaks_bytes) is not None and program.recipe is None and not p.ranks:
        recorded = ["--simulate", p.gpu, "--record", "run.plim"]
        return ["plimsoll", "run", *recorded, *program.words, *program.arguments]
    if p.ranks:
        return []  # a job of several ranks: no further command applies
    vary, fewer = _batch_argument(program), p.fewer_steps
    steps = ["--steps", str(fewer.at_most)] if fewer is not None and fewer.has_ended else []
    if p.fits and vary is not None:
        follow = ["fit", *program.words, f"--vary={vary}", "--gpu", p.gpu, *steps]
    elif p.fits is not False:
        return ["plimsoll", "run", "--record", "run.plim", *program.words, *program.arguments]
    else:
        follow = ["fit", *program.words, "--gpu", p.gpu, *steps]
    return ["plimsoll", *follow, *(["--", *program.further] if program.further else [])]


def _batch_argument(program: Program) -> str | None:
    """Returns the script's argument for the batch size, such as --batch-size.

    Searches the given arguments first, then the script's text. Returns None if nothing is found.
    """
    texts = [*program.arguments]
    if not program.is_module:
        with suppress(OSError):
            texts.append(Path(program.script).read_text(errors="replace"))
    found = (_BATCH.search(text) for text in texts)
    return next((match[0] for match in found if match is not None), None)


def _show_plot(results: list[Prediction]) -> None:
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
        to = console()
        to.print()
        to.print(plot(pictures, to.width))


def _answer(results: list[Prediction]) -> Iterator[str]:
    """Yields the lines that say on which cards the script fits, and what limits the answer."""
    from plimsoll.prediction.caveats import caveats
    from plimsoll.prediction.little_room import doubt, spare_caveats
    from plimsoll.prediction.need_text import rescue_text
    from plimsoll.prediction.text import whose_line

    first = results[0]
    doubtful = [result.gpu for result in results if doubt(result) is not None]
    fitting = [result.gpu for result in results if result.fits and result.gpu not in doubtful]
    failing = [result.gpu for result in results if result.fits is False]
    open_ = [result.gpu for result in results if result.fits is None]
    verdicts = [
        f"fits on {', '.join(fitting)}" * bool(fitting),
        f"may not fit on {', '.join(doubtful)}" * bool(doubtful),
        f"does not fit on {', '.join(failing)}" * bool(failing),
        f"is not known to fit on {', '.join(open_)}" * bool(open_),
    ]
    yield f"{first.script} {'; it '.join(filter(None, verdicts))}"
    for result in results:
        if rescue := rescue_text(result):
            yield f"{result.gpu}: {rescue.removeprefix('; ')}"
        if result.why_unknown is not None:
            yield f"{result.gpu}: {result.why_unknown}"
    if (line := whose_line(first)) is not None:
        yield line
    cards: dict[str, list[str]] = {}
    for result in results:
        for line in (*spare_caveats(result), *caveats(result)):
            cards.setdefault(line, []).append(result.gpu)
    for line, gpus in cards.items():
        yield line if len(gpus) == len(results) else f"{', '.join(gpus)}: {line}"


def _table(results: list[Prediction], width: int | None) -> Iterator[str]:
    from plimsoll.prediction.little_room import doubt
    from plimsoll.prediction.need_text import needed_bytes

    heads = ("card", "memory", "allocated", "reserved", "needs", "headroom", "step", "fits")
    rows = [
        (
            result.gpu,
            format_size(result.total_bytes),
            format_size(result.peak_allocated_bytes),
            format_size(result.peak_reserved_bytes),
            format_size(needed_bytes(result)),
            ("-" if result.headroom_bytes < 0 else "") + format_size(abs(result.headroom_bytes)),
            _step(result),
            "may not"
            if doubt(result) is not None
            else {True: "yes", False: "no", None: "not known"}[result.fits],
        )
        for result in results
    ]
    optional = ("allocated", "reserved", "step", "memory")
    yield from table([heads, *rows], width=width, names=("card", "fits"), optional=optional)
    yield "With only one --gpu, predict also lists the script's lines that hold the most memory."


def _step(result: Prediction) -> str:
    """Returns the estimated time of a step on a card where the script fits."""
    if not result.fits or result.step_seconds is None:
        return "-"
    return f"about {format_seconds(result.step_seconds)}"
