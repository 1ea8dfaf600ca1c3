"""`plimsoll fit`."""

from __future__ import annotations

import shlex
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plimsoll.base.errors import InputError
from plimsoll.base.json_text import json_line
from plimsoll.base.units import format_size
from plimsoll.cli import options
from plimsoll.cli.fit_serving import run_serving
from plimsoll.cli.fit_within import run_within
from plimsoll.cli.program import chosen_program
from plimsoll.cli.progress import Progress
from plimsoll.cli.terminal import hint, show
from plimsoll.prediction.recipes.served import VLLM, engine_of_script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from plimsoll.cli.program import Program
    from plimsoll.prediction.fitting.parts import FitParts, Trial
    from plimsoll.prediction.options import Options

    Shown = Callable[[int | None, Trial | None], None]


@options.takes_simulation(
    *(name for name in options.SIMULATION if name not in ("world", "ranks", "plan"))
)
def fit(
    script: options.NoScript = None,
    arguments: options.Arguments = None,
    module: options.Module = False,
    model: options.Model = None,
    recipe: options.RecipeName = None,
    batch_size: options.BatchSize = None,
    seq_len: options.SeqLen = None,
    save_recipe: options.SaveRecipe = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            help="The script's argument to vary, as in --vary=--batch-size. --vary=@1 varies the "
            "first of ARGS, and --vary=env:BATCH an environment variable. For vllm serve, an "
            "option of the engine, as in --vary=--max-model-len. To try values of "
            "a second engine option too, add --vary=--kv-cache-dtype=auto,fp8, for example.",
            metavar="ARGUMENT",
        ),
    ] = None,
    within: Annotated[
        str | None,
        typer.Option(
            help="The most memory that the program may take, such as 24GiB.",
            show_default="the card's memory",
            metavar="SIZE",
        ),
    ] = None,
    apply: Annotated[
        Path | None,
        typer.Option(help="Write the changed script to this file.", metavar="FILE"),
    ] = None,
    plot: Annotated[
        bool,
        typer.Option("--plot", help="Draw memory over time, before and after the changes."),
    ] = False,
    view: Annotated[
        Path | None,
        typer.Option(
            help="Write a page to this .html file. The page shows the memory before and after the "
            "changes, as `plimsoll view` does.",
            metavar="FILE",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")] = False,
    tries: Annotated[
        list[str] | None,
        typer.Option(
            "--try",
            help="Also try this change: compile (torch.compile). The search then takes longer.",
            metavar="CHANGE",
        ),
    ] = None,
    start: Annotated[
        int | None,
        typer.Option(
            help="The first value to try.",
            metavar="N",
            show_default="the value in ARGS; without one, the script's default; without both, 1",
        ),
    ] = None,
    at_most: Annotated[
        int | None, typer.Option(help="The largest value to try.", metavar="N")
    ] = None,
    multiple_of: Annotated[
        int, typer.Option(help="Try only multiples of this number.", metavar="N")
    ] = 1,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact",
            help="Find exactly the largest value that fits. Without --exact, the answer can be up "
            "to 1% smaller.",
        ),
    ] = False,
    headroom: Annotated[
        str | None,
        typer.Option(
            help="How much of the card's memory must stay free, as in 2GiB or 5%.", metavar="SIZE"
        ),
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(
            help="For vllm serve: a .parquet file that keeps the results of finished tries. Later "
            "runs of fit and of `plimsoll sweep` do not repeat these tries.",
            metavar="FILE",
        ),
    ] = None,
    gpu: options.Gpu = None,
    *,
    simulation: options.Simulation,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object for each card, one on each line.")
    ] = False,
) -> None:
    """Find changes that make a script fit a card.

    With --vary, find an argument's largest value for which the script fits.

    Without --vary, plimsoll tries changes to the script, in at most fifteen simulations. The answer
    is a diff to the fastest version of the script that fits.

    With --vary, plimsoll tries at most eight values, two at a time. The answer fits, and a value at
    most 1% larger does not. plimsoll has tried both. If the search ends early, the answer is a
    bound ("at least" or "between"), with the reason.

    For `vllm serve`, --vary names an option of the engine. plimsoll finds the largest value with
    which the engine serves its load. For --tensor-parallel-size, plimsoll finds the smallest value.
    With only --gpu, plimsoll changes the engine's options until the engine serves its load on that
    card. With neither, plimsoll finds the smallest card on which the engine serves its load.

    plimsoll prints the result of each try to stderr. The script's output appears only if the
    script fails.

    Exit status: 0 plimsoll found a fit; 1 none of the tries fits; 2 bad input, or the
    script fails; 3 the answer is not known; 130 interrupted.
    """
    from plimsoll.prediction.fitting.text import answer_text, fit_text
    from plimsoll.prediction.fitting.values import fit as run
    from plimsoll.prediction.not_kept import tell
    from plimsoll.prediction.options import Options
    from plimsoll.prediction.parts import INTERRUPTED
    from plimsoll.prediction.serving.engine_search import Bounds

    cards = [Options(gpu=name, **simulation) for name in gpu or [options.DEFAULT_GPU]]
    program = chosen_program(
        script, arguments, module=module, model=model, recipe=recipe, batch_size=batch_size,
        seq_len=seq_len, save_recipe=save_recipe, force=force,
        is_job=simulation["nproc_per_node"] is not None,
    )  # fmt: skip
    for card in cards:  # reports bad options before the first run
        card.request(program.script, is_module=module)
    for_changes = (within, apply, view, tries or None, plot or None)
    if engine := engine_of_script(program.script):
        if engine is not VLLM:
            raise InputError(
                f"fit searches only the options of vllm serve; plimsoll predict {engine.command} "
                "serve ... says whether given options fit"
            )
        if any(each is not None for each in for_changes):
            raise InputError(
                "--within, --apply, --plot, --view and --try are for scripts, and not for vllm "
                "serve"
            )
        run_serving(
            program, vary or [], gpus=gpu, headroom=headroom, results=results, as_json=as_json,
            bounds=Bounds(start, at_most, multiple_of, exact), simulation=simulation,
        )  # fmt: skip
        return
    if results is not None:
        raise InputError("--results is for vllm serve")
    varied = _one_argument(vary or [])
    if varied is not None and any(each is not None for each in for_changes):
        raise InputError(
            "--within, --apply, --plot, --view and --try are for changes, and not with --vary"
        )
    program = program.saved(save_recipe, force=force)
    if varied is None:
        run_within(
            program.script, program.arguments, within=within, cards=cards, apply=apply, plot=plot,
            view=view, force=force, tries=tries or [], headroom=headroom, as_json=as_json,
            module=module,
        )  # fmt: skip
        return
    any_fails = any_open = False
    for card in cards:
        with _shown(card, varied, names_card=len(cards) > 1) as progress:
            found = run(
                program.script, varied, program.arguments,
                module=module, start=start, at_most=at_most, multiple_of=multiple_of, exact=exact,
                headroom=headroom, progress=progress, **asdict(card),
            )  # fmt: skip
        any_fails = any_fails or (found.largest is None and not found.is_open)
        any_open = any_open or found.is_open
        tell(found.not_kept)
        if as_json:
            words = {"why": answer_text(found), "next": shlex.join(_follow(program, found))}
            print(json_line(found.to_dict() | words))
        else:
            show(partial(fit_text, found), "no" if found.largest is None else "yes")
            if found.may_fit is not None and program.recipe is None:
                print(f"Next: {shlex.join(_follow(program, found))}")
            else:
                hint(_follow(program, found))
        if found.stopped == INTERRUPTED:
            raise typer.Exit(130)
    if any_fails or any_open:
        raise typer.Exit(1 if any_fails else 3)


def _one_argument(vary: list[str]) -> str | None:
    """Returns the script's argument that --vary names; None without --vary."""
    if len(vary) > 1:
        raise InputError(f"one argument of a script is varied, not {len(vary)}")
    return vary[0] if vary else None


def _follow(program: Program, found: FitParts) -> list[str]:
    """Returns the command that the user probably wants next.

    The command runs the script with the largest value that fits. If a larger value may fit, the
    command predicts that value, because its report says what decides. If no value fits, the command
    is `plimsoll fit` without --vary, which looks for other changes.
    """
    from plimsoll.prediction.fitting.varied_argument import put_in, take_out, variables

    if found.may_fit is not None and program.recipe is None:
        _, others = take_out(program.further, found.vary)
        further = ["--", *put_in(others, found.vary, found.may_fit)]
        predict = ["plimsoll", "predict", *program.words, "--gpu", found.gpu]
        return [*_set(variables(found.vary, found.may_fit)), *predict, *further]
    if found.largest is None:
        further = ["--", *program.further] if program.further else []
        return ["plimsoll", "fit", *program.words, "--gpu", found.gpu, *further]
    _, others = take_out(program.arguments, found.vary)
    module = ["-m"] if program.is_module else []
    words = ["python", *module, program.script, *put_in(others, found.vary, found.largest)]
    return [*_set(variables(found.vary, found.largest)), *words]


def _set(variables: dict[str, str]) -> list[str]:
    """Returns the beginning of a command that sets environment variables."""
    return ["env", *(f"{name}={value}" for name, value in variables.items())] if variables else []


@contextmanager
def _shown(card: Options, vary: str, *, names_card: bool) -> Iterator[Shown]:
    """Yields a function that shows on stderr which values are tried, and the outcome of each."""
    from plimsoll.engine.gpus.profiles import gpu_profile
    from plimsoll.prediction.fitting.text import trial_text

    profile = gpu_profile(card.gpu)
    prefix = f"{profile.name}: " if names_card else ""
    first = f"{profile.name}, {format_size(profile.total_bytes)}: "
    first += f"looking for the largest {vary} that fits"
    with Progress(profile.name) as progress:
        running: set[int | None] = set()

        def show_trial(value: int | None, trial: Trial | None) -> None:
            nonlocal first
            if first:
                progress.say(first)
                first = ""
            if trial is None:
                running.add(value)
            else:
                running.difference_update({value, None})
                outcome = trial_text(trial, profile.total_bytes)
                progress.say(f"{prefix}{vary} {value}: {outcome}")
            tried = ", ".join(str(each) for each in sorted(v for v in running if v is not None))
            doing = f"{vary} {tried}" if tried else f"the script's own {vary}"
            progress.now(f"{profile.name}: trying {doing}")

        yield show_trial
