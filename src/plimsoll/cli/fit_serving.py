"""`plimsoll fit` for a serving engine: finds options that let it serve, or the smallest card."""

from __future__ import annotations

import shlex
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from plimsoll.base.json_text import json_line
from plimsoll.cli.progress import Progress
from plimsoll.cli.terminal import NOT_KNOWN, show

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from plimsoll.cli.program import Program
    from plimsoll.prediction.serving.engine_search import Bounds
    from plimsoll.prediction.serving.parts import EngineTrial

    Shown = Callable[[str, Mapping[str, str], EngineTrial | None], None]


def run_serving(
    program: Program,
    vary: Sequence[str],
    *,
    gpus: Sequence[str] | None,
    bounds: Bounds,
    headroom: str | None,
    results: Path | None,
    as_json: bool,
    simulation: dict[str, Any],
) -> None:
    """Searches for options with which the engine serves, and prints an answer for each card.

    Args:
        program: The engine with its arguments.
        vary: The values of --vary. If there are none and `gpus` is given, plimsoll changes the
            engine's options until the engine serves.
        gpus: The cards to search on. If None, `fit_engine` chooses: an H100 if --vary names an
            option to search, else the smallest card that suffices.
        bounds: The values that plimsoll may try for the option that --vary names.
        headroom: The memory that must stay free under load.
        results: The file that keeps finished trials; None keeps none.
        as_json: Whether to print JSON.
        simulation: The options of the predictions.
    """
    from plimsoll.prediction.not_kept import tell
    from plimsoll.prediction.serving.engine_fit import fit_engine
    from plimsoll.prediction.serving.engine_fit_text import (
        answer_text,
        command_of,
        engine_fit_text,
        is_unknown,
    )

    any_fails = any_unknown = False
    for gpu in [*gpus] if gpus else [None]:
        with _shown(program) as progress:
            found = fit_engine(
                program.arguments, vary, gpu=gpu, bounds=bounds, headroom=headroom,
                results=results, progress=progress, **simulation,
            )  # fmt: skip
        tell(found.not_kept)
        any_unknown = any_unknown or is_unknown(found)
        any_fails = any_fails or (found.best is None and not is_unknown(found))
        if as_json:
            words = {"why": answer_text(found), "next": shlex.join(command_of(found))}
            print(json_line(found.to_dict() | words))
        else:
            show(partial(engine_fit_text, found), "no" if found.best is None else "yes")
        if found.stopped is not None:
            raise typer.Exit(130)
    if any_fails:
        raise typer.Exit(1)
    if any_unknown:
        raise typer.Exit(NOT_KNOWN)


@contextmanager
def _shown(program: Program) -> Iterator[Shown]:
    """Yields a function that shows on stderr what is tried, and the outcome of each trial."""
    from plimsoll.prediction.recipes.served import VLLM, served_title
    from plimsoll.prediction.serving.engine_fit_text import settings_text, trial_text

    title = served_title(VLLM, program.arguments)
    with Progress(title) as progress:

        def show_trial(gpu: str, settings: Mapping[str, str], trial: EngineTrial | None) -> None:
            what = f"{gpu}, {settings_text(settings) or 'as it is'}"
            progress.now(f"{title} on {what}")
            if trial is not None:
                kept = " (kept)" if trial.is_kept else ""
                progress.say(f"{what}: {trial_text(trial)}{kept}")

        yield show_trial
