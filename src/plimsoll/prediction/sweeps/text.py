"""Formats a sweep as text with a table."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from plimsoll.base.layout import paragraphs, table
from plimsoll.base.units import format_count, format_seconds, format_size
from plimsoll.prediction.little_room import MAY_TAKE_MORE
from plimsoll.prediction.serving_text import room_text
from plimsoll.prediction.sweeps.best_rows import best_first, by_program, cost
from plimsoll.prediction.sweeps.served_rows import ends_of, serving_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from plimsoll.prediction.sweeps.parts import Row, SweepParts

_NAMES = ("program", "arguments", "card", "configuration", "allocator", "the engine", "fits")
_OPTIONAL = ("card's memory", "allocated", "step", "reserved")
_BEST_IS = {
    "least-memory": "the least memory is needed by",
    "fits": "the smallest card that fits is",
    "most-samples": "the fastest is",
    "least-cost": "the cheapest is",
}


def sweep_text(found: SweepParts, width: int | None = None) -> str:
    """Returns a sweep as text: each program's best case, a table of all cases, and the failures.

    Args:
        found: The sweep.
        width: The number of columns; if None, lines are not folded.
    """
    return paragraphs([answers(found), _table(found, width), _failures(found), _end(found)], width)


def verdict(row: Row) -> str:
    """Returns whether a row's case fits, in a word or two."""
    if row.error is not None:
        return "failed"
    return _DOUBTFUL if row.may_not_fit else _VERDICTS[row.fits]


def answers(found: SweepParts) -> list[str]:
    """Returns one or two lines for each program.

    The first line names the best case by the plan's goal, or says that no case fits. If cases fit
    on several cards, the second line names the best case for each of the other goals.
    """
    lines = [line for rows in by_program(found) for line in _answers(rows, found)]
    return lines or ["Nothing was run"]


def _answers(rows: Sequence[Row], found: SweepParts) -> Iterator[str]:
    yield _answer(rows, found)
    fitting = [row for row in rows if row.fits]
    if not _differs([row.case.gpu or "" for row in fitting]):
        return
    others = [
        _best(best, rows, found, goal)
        for goal in _BEST_IS
        if goal != found.goal
        for best in best_first(fitting, goal, found)[:1]
        if _is_known(best, goal, found)
    ]
    if others:
        yield f"Also: {'; '.join(others)}"


def _answer(rows: Sequence[Row], found: SweepParts) -> str:
    best, program = rows[0], rows[0].case.name
    if best.error is not None:
        return f"{program} fails in all {format_count(len(rows), 'case')}: {best.error}"
    if not best.fits:
        unknown = sum(row.fits is None and row.error is None for row in rows)
        known = f"; for {unknown} plimsoll cannot tell" if unknown else ""
        return f"{program} fits in none of {format_count(len(rows), 'case')}{known}"
    fitting = sum(row.fits is True for row in rows)
    return (
        f"{program}: {_best(best, rows, found, found.goal)}; "
        f"{fitting} of {format_count(len(rows), 'case')} fit{'s' * (fitting == 1)}"
    )


def _best(best: Row, rows: Sequence[Row], found: SweepParts, goal: str) -> str:
    """Returns words that name the best case, such as "the fastest is H100 (9.5 samples/s)".

    The name of a case is its card, followed by the arguments, settings and allocator that differ
    between the cases.
    """
    kinds: list[Callable[[Row], str]] = [
        lambda row: shlex.join(row.case.arguments),
        lambda row: row.case.conf or "default settings",
        lambda row: row.case.allocator,
    ]
    differing = [kind(best) for kind in kinds if _differs([kind(row) for row in rows])]
    words = [best.case.gpu or "", *differing]
    where = ", ".join(word for word in words if word) or "what was recorded"
    doubt = ", and may not fit" if best.may_not_fit else ""
    return f"{_BEST_IS[goal]} {where} ({_figure(best, goal, found)}{doubt})"


def _is_known(row: Row, goal: str, found: SweepParts) -> bool:
    """Returns whether a row has the figure by which a goal ranks."""
    if goal == "least-cost":
        return cost(row, found.prices) is not None
    return goal != "most-samples" or row.samples_per_second is not None


def _figure(row: Row, goal: str, found: SweepParts) -> str:
    money = cost(row, found.prices)
    if goal == "least-cost" and money is not None:
        unit = "an hour" if row.case.is_serving else "for a million samples"
        return f"{money:.2f} {unit}"
    if goal == "most-samples" and row.samples_per_second is not None:
        return f"{row.samples_per_second:.1f} samples/s"
    if goal == "fits" and (use := serving_of(row)) is not None and use.kv_tokens:
        return room_text(use)
    used = format_size(row.device_used_bytes or 0)
    if goal == "fits" and row.total_bytes is not None:
        whole = f"{used} of {format_size(row.total_bytes)}"
        return f"{whole} on the fullest of {row.case.cards} cards" if row.case.ranks > 1 else whole
    return used


def row_name(row: Row) -> str:
    """Returns a row's name in the picture: its arguments, card, settings and allocator."""
    parts = [shlex.join(row.case.arguments), row.case.gpu, _conf(row), _allocator(row)]
    return ", ".join(part for part in parts if part) or row.case.name


def _conf(row: Row) -> str:
    return row.case.conf or ""


def _allocator(row: Row) -> str:
    return "" if row.case.allocator == "native" else row.case.allocator


def table_rows(found: SweepParts) -> list[tuple[str, ...]]:
    """Returns the table: the heads of its columns, then the rows of each program, best first.

    A column whose values are all equal is left out, except "on the card" and "fits".
    """
    rows = [row for rows in by_program(found) for row in rows]
    cells = [_cells(row, found) for row in rows]
    heads = [
        head
        for head in (cells[0] if cells else ())
        if head in ("on the card", "fits") or _differs([each[head] for each in cells])
    ]
    return [tuple(heads), *(tuple(each[head] for head in heads) for each in cells)]


def _differs(column: Sequence[str]) -> bool:
    return len(set(column)) > 1


def _cells(row: Row, found: SweepParts) -> dict[str, str]:
    case, money = row.case, cost(row, found.prices)
    samples, use = row.samples_per_second, serving_of(row)
    requests = None if use is None else use.longest_requests
    return {
        "program": case.name,
        "arguments": shlex.join(case.arguments),
        "card": case.gpu or "recorded",
        "configuration": "recorded" if case.conf is None else case.conf or "default",
        "allocator": case.allocator,
        "allocated": _size(row.peak_allocated_bytes),
        "reserved": _size(row.peak_reserved_bytes),
        "on the card": _size(row.device_used_bytes),
        "card's memory": _size(row.total_bytes),
        "step": "-" if row.step_seconds is None else format_seconds(row.step_seconds),
        "samples/s": "-" if samples is None else f"{samples:.1f}",
        "cost": "-" if money is None else f"{money:.2f}",
        "KV tokens": f"{use.kv_tokens:,}" if use is not None and use.kv_tokens else "-",
        "requests": "-" if requests is None else f"{requests:.1f}",
        "the engine": ends_of(row) or "-",
        "fits": verdict(row),
    }


_DOUBTFUL = "may not"
_VERDICTS = {True: "yes", False: "no", None: "not known"}


def _size(size: int | None) -> str:
    return "-" if size is None else format_size(size)


def _table(found: SweepParts, width: int | None) -> Iterator[str]:
    if found.rows:
        yield from table(table_rows(found), width=width, names=_NAMES, optional=_OPTIONAL)


def _failures(found: SweepParts) -> Iterator[str]:
    said = {rows[0].error for rows in by_program(found)}  # errors that `answers` shows
    for row in found.rows:
        if row.error is not None and row.error not in said:
            yield f"{row.case.title} failed: {row.error}"


def _end(found: SweepParts) -> Iterator[str]:
    if any(row.may_not_fit for row in found.rows):
        yield f"{_DOUBTFUL}: {MAY_TAKE_MORE}"
    ranks = max((row.case.ranks for row in found.rows), default=1)
    if ranks > 1:
        yield (
            f"The samples/s are those of all {ranks} ranks, if each rank has samples of its own. "
            "The memory is that of the fullest card."
        )
    if found.rows and found.prices:
        serves = all(row.case.is_serving for row in found.rows)
        what = "an hour of the cards" if serves else "a million samples"
        cards = f" of all {ranks} cards" if ranks > 1 else ""
        yield f"The cost is that of {what}, by the given hourly prices{cards}."
    if len(found.rows) < found.cases:
        yield f"{found.cases - len(found.rows)} of {format_count(found.cases, 'case')} are not done"
