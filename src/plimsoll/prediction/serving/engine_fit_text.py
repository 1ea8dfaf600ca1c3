"""Formats the results of searches over a serving engine's options as text."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from plimsoll.base.layout import Verbatim, paragraphs, table
from plimsoll.base.units import format_size
from plimsoll.prediction.little_room import thin_line
from plimsoll.prediction.parts import INTERRUPTED
from plimsoll.prediction.recipes.served import VLLM, given, served_title
from plimsoll.prediction.serving.engine_trials import with_settings
from plimsoll.prediction.serving.parts import CARD
from plimsoll.prediction.serving.trial_ends import own_value
from plimsoll.prediction.serving_text import room_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from plimsoll.prediction.serving.parts import EngineBorder, EngineFitParts, EngineTrial

_CARD, _ENDS = "card", "the engine"


def engine_fit_text(fit: EngineFitParts, width: int | None = None) -> str:
    """Returns the answer, the command to run, and a table of all trials, as text.

    Args:
        fit: The result.
        width: The number of columns; if None, lines are not folded.
    """
    first = [answer_text(fit), *_about_best(fit), *_others(fit)]
    return paragraphs([first, _table(fit, width), _errors(fit)], width)


def answer_text(fit: EngineFitParts) -> str:
    """Returns the answer in words.

    Also names the nearest value with which the engine does not serve, if there is one.
    """
    best, title = fit.best, served_title(VLLM, fit.command[2:])
    if best is None:
        return _no_answer(fit, title)
    if best.vary == CARD:
        return f"{title}: the smallest card that serves is {_found(best)}"
    if fit.vary is None and best.vary is None and not best.settings:
        return f"{title} serves on {fit.gpu} as it is"
    if fit.vary is None:
        return f"{title} serves on {fit.gpu} with {_found(best)}"
    return f"{fit.gpu}: {_found(best)}"


def trial_text(trial: EngineTrial) -> str:
    """Returns one line on how a trial ended."""
    if trial.error is not None:
        return f"the engine fails: {trial.error}"
    parts = [trial.ends]
    if trial.fits and trial.headroom_bytes is not None:
        parts.append(f"{format_size(trial.headroom_bytes)} to spare")
    if trial.fits and (room := _room(trial)):
        parts.append(room)
    return ", ".join(parts)


def settings_text(settings: Mapping[str, str]) -> str:
    """Returns each option's name and value; the value can be "none" or "on".

    `EngineTrial.settings` explains these two values.
    """
    return " ".join(f"{name} {value}" for name, value in settings.items())


def command_of(fit: EngineFitParts) -> list[str]:
    """Returns the command with the options of the answer; empty if there is no answer."""
    if fit.best is None or fit.best.trial is None:
        return []
    return [*fit.command[:2], *with_settings(fit.command[2:], fit.best.trial.settings)]


def is_unknown(fit: EngineFitParts) -> bool:
    """Returns whether plimsoll cannot tell if the engine serves.

    plimsoll then found no answer, and at least one trial does not show whether memory suffices.
    """
    return fit.best is None and any(each.fits is None and each.error is None for each in fit.tried)


def _no_answer(fit: EngineFitParts, title: str) -> str:
    if fit.stopped == INTERRUPTED:
        return f"{title}: nothing that serves was found: interrupted"
    last = fit.found[-1]
    if is_unknown(fit):
        on = "a card" if fit.gpu is None else fit.gpu
        return f"{title}: it is not known whether it serves on {on}"
    if fit.gpu is None:
        return f"{title} serves on no card that plimsoll knows"
    if fit.vary is None:
        own = fit.found[0].beyond
        ends = "" if own is None else f": it {own.ends}"
        return f"{title} does not serve on {fit.gpu}, nor with what was tried{ends}"
    why = last.stopped or (last.beyond.ends if last.beyond is not None else "nothing serves")
    return f"{fit.gpu}: no {fit.vary} that serves was found: {why}"


def _found(border: EngineBorder) -> str:
    """Returns words for an answer: its value and its settings.

    Also names the nearest value with which the engine does not serve, or says why the search ended.
    """
    assert border.trial is not None
    parts = []
    if border.vary == CARD:
        parts.append(f"{border.value} ({format_size(border.trial.total_bytes or 0)})")
    elif border.vary is not None:
        is_open = border.stopped is not None and border.beyond is None
        least = "at least " if is_open and border.stopped == INTERRUPTED else ""
        parts.append(f"{border.vary} {least}{border.value}")
    if border.settings:
        parts.append(f"{'with ' * bool(parts)}{settings_text(border.settings)}")
    return " ".join(parts) + _beyond(border)


def _beyond(border: EngineBorder) -> str:
    if border.stopped == INTERRUPTED:
        return ": interrupted"
    if border.beyond is None or border.vary is None:
        return "" if border.stopped is None else f": {border.stopped}"
    if border.beyond.error is not None:
        return f"; with {border.next_value} the engine fails"
    known = f"; {border.next_value} {border.beyond.ends}"
    return known if border.stopped is None else f"{known}; not searched further: {border.stopped}"


def _room(trial: EngineTrial) -> str:
    use = trial.serving
    if use is None or not use.kv_tokens:
        return ""
    return room_text(use)


def _about_best(fit: EngineFitParts) -> Iterator[str]:
    """Yields lines about the best answer: the room for requests, a warning, the command to run."""
    trial = None if fit.best is None else fit.best.trial
    if trial is None:
        return
    if room := _room(trial):
        spare = format_size(trial.headroom_bytes or 0)
        yield f"  {room}; {spare} of {format_size(trial.total_bytes or 0)} to spare under load"
    yield from thin_line(trial.headroom_bytes or 0, trial.total_bytes or 0, of="the card")
    yield Verbatim(f"Run: {shlex.join(command_of(fit))}")


def _others(fit: EngineFitParts) -> Iterator[str]:
    """Yields a line for each search but the best: its answer, or why no value serves."""
    for border in fit.found:
        if fit.vary is None or border is fit.best or not border.settings:
            continue
        if border.trial is not None:
            yield f"  also: {_found(border)}"
        else:
            why = border.stopped or (border.beyond.ends if border.beyond is not None else "")
            yield f"  {settings_text(border.settings)}: no answer: {why}"


def _table(fit: EngineFitParts, width: int | None) -> Iterator[str]:
    """Yields a table with a row for each trial.

    Leaves out each column whose cells are all equal, but always keeps the column that tells how
    each trial ended.
    """
    names = list(dict.fromkeys(name for trial in fit.tried for name in trial.settings))
    heads = (_CARD, *names, _ENDS, "to spare", "KV cache", "tokens", "requests")
    cells = [
        (trial.gpu, *(_cell(fit, trial, name) for name in names), *_figures(trial))
        for trial in fit.tried
    ]
    shown = [
        place
        for place, head in enumerate(heads)
        if head == _ENDS or len({row[place] for row in cells}) > 1
    ]
    if cells:
        yield from table(
            [tuple(row[place] for place in shown) for row in (heads, *cells)],
            width=width, indent="  ", names=(_CARD, _ENDS), optional=("KV cache", "to spare"),
        )  # fmt: skip


def _cell(fit: EngineFitParts, trial: EngineTrial, name: str) -> str:
    """Returns the value that an option had in a trial.

    The search or the command set it. If neither did, it is the engine's default.
    """
    text = trial.settings.get(name) or given(fit.command[2:], name)
    if text is None:
        own = own_value(trial, name)
        text = "-" if own is None else f"{own:g}" if isinstance(own, float) else str(own)
    return text


def _figures(trial: EngineTrial) -> tuple[str, ...]:
    use = trial.serving
    requests = None if use is None else use.longest_requests
    return (
        trial.ends,
        "-" if trial.headroom_bytes is None else format_size(trial.headroom_bytes),
        "-" if use is None or use.kv_cache_bytes is None else format_size(use.kv_cache_bytes),
        "-" if use is None or not use.kv_tokens else f"{use.kv_tokens:,}",
        "-" if requests is None else f"{requests:.1f}",
    )


def _errors(fit: EngineFitParts) -> Iterator[str]:
    for trial in fit.tried:
        if trial.error is not None:
            where = ", ".join(filter(None, (trial.gpu, settings_text(trial.settings))))
            yield f"{where}: the engine fails: {trial.error}"
