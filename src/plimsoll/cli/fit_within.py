"""`plimsoll fit` without `--vary`: what to change so that a script fits."""

from __future__ import annotations

import sys
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

import typer

from plimsoll.base.json_text import json_line
from plimsoll.base.units import format_seconds, format_size
from plimsoll.cli.progress import Progress
from plimsoll.cli.terminal import console, show

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from plimsoll.prediction.fitting.attempts import Attempt
    from plimsoll.prediction.fitting.plans import Plan
    from plimsoll.prediction.options import Options


def run_within(
    script: str,
    arguments: Sequence[str],
    *,
    within: str | None,
    cards: Sequence[Options],
    apply: Path | None,
    plot: bool,
    view: Path | None,
    force: bool,
    tries: Sequence[str],
    headroom: str | None,
    as_json: bool,
    module: bool,
) -> None:
    """Searches for changes with which the script fits, and prints the changes for each card.

    Raises:
        typer.Exit: With status 1 if there is a card for which no changes make the script fit; with
            status 130 after an interrupt.
    """
    from plimsoll.base.errors import InputError
    from plimsoll.prediction.fitting.plan_text import verdict_words
    from plimsoll.prediction.fitting.within import fit_within
    from plimsoll.prediction.not_kept import tell

    for name in tries:
        if name != "compile":
            raise InputError(f"there is no change {name!r} to try; there is compile")
    if apply is not None and len(cards) > 1:
        raise InputError("--apply is for one card")
    if view is not None and len(cards) > 1:
        raise InputError("--view is for one card")
    if plot and as_json:
        raise InputError("--plot is for people; with --json the timelines are in the answer")
    all_fit, interrupted = True, False
    for card in cards:
        options = {name: value for name, value in asdict(card).items() if name != "gpu"}
        with Progress(f"reading {script}") as progress:
            plan = fit_within(
                script, arguments, within=within, gpu=card.gpu, apply=apply, view=view,
                force=force, compiles="compile" in tries, headroom=headroom,
                watcher=_Watcher(progress), module=module,
                **options,
            )  # fmt: skip
        tell(plan.not_kept)
        if as_json:
            print(json_line(plan.to_dict() | verdict_words(plan)), flush=True)
        else:
            _show(plan, plots=plot)
        all_fit, interrupted = all_fit and plan.fits, plan.interrupted
        if interrupted:
            break
    if interrupted:
        raise typer.Exit(130)
    if not all_fit:
        raise typer.Exit(1)


def _show(plan: Plan, *, plots: bool) -> None:
    """Prints a plan: the answer of `plimsoll fit` for one card.

    On a terminal the text is coloured, and as wide as the terminal.
    """
    from plimsoll.prediction.fitting.plan_text import plan_text, runs_picture

    show(partial(plan_text, plan), "yes" if plan.fits else "no")
    to = console()
    picture = runs_picture(plan, to.width) if plots else None
    if picture is not None:
        to.print()
        to.print(picture)
    sys.stdout.flush()


class _Watcher:
    """Shows on stderr which changes are being tried, and the outcome of each trial."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._running: list[str] = []
        self._ended = 0

    def begins(self, names: Sequence[str]) -> None:
        """Shows that a trial has begun."""
        self._running.append(_together(names))
        self._show()

    def ended(self, attempt: Attempt) -> None:
        """Shows the outcome of a trial."""
        self._ended += attempt.prediction is not None
        name = _together([change.label for change in attempt.changes])
        if name in self._running:
            self._running.remove(name)
        self._progress.say(f"{name}: {_outcome(attempt)}")
        self._show()

    def _show(self) -> None:
        from plimsoll.prediction.fitting.plan_search import MOST_SIMULATIONS

        text = ", ".join(self._running)
        counted = f"{self._ended} of at most {MOST_SIMULATIONS} simulations done"
        self._progress.now(f"trying {text}, {counted}" if text else counted)


def _together(names: Sequence[str]) -> str:
    return " + ".join(names) or "the unchanged script"


def _outcome(attempt: Attempt) -> str:
    from plimsoll.prediction.fitting.plan_text import allocator_title

    if attempt.prediction is None:
        return f"not possible: {attempt.failure}"
    used = f"{format_size(attempt.prediction.device_used_bytes)}{_with_less(attempt)}"
    seconds = attempt.step_seconds
    step = "" if seconds is None else f", about {format_seconds(seconds)} a step"
    use = attempt.fitting()
    if use is None:
        return f"does not fit, {used}{step}"
    if use == attempt.allocators()[0]:
        return f"fits, {used}{step}"
    taken = format_size(attempt.outside_bytes() + use.taken_bytes)
    return f"fits under {allocator_title(use.allocator, use.conf)}, {taken}{step}"


def _with_less(attempt: Attempt) -> str:
    """Returns the allocator that needs the least card memory, as in " (20.00 GiB with NAME)".

    Returns "" if PyTorch's own allocator, the first in `attempt.allocators()`, needs the least.
    """
    from plimsoll.prediction.fitting.plan_text import allocator_title

    least = attempt.least_use()
    if least == attempt.allocators()[0]:
        return ""
    size = format_size(attempt.least_bytes())
    return f" ({size} with {allocator_title(least.allocator, least.conf)})"
