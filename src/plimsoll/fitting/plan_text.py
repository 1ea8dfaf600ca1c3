"""Plans in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.prediction.text import paragraphs
from plimsoll.printable import printable
from plimsoll.units import format_count, format_seconds, format_size, size_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.fitting.plan_parts import PlanParts, Tried

_NATIVE = "PyTorch's allocator"


def plan_text(plan: PlanParts) -> str:
    """The answer, the changes as lines, and what was tried."""
    return paragraphs(
        [
            _answer(plan),
            _patch(plan),
            _front(plan),
            _alone(plan),
            _floor(plan),
            _effort(plan),
        ]
    )


def _answer(plan: PlanParts) -> Iterator[str]:
    within = f"{format_size(plan.within_bytes)} of {plan.gpu}"
    used = format_size(plan.device_used_bytes)
    if not plan.fits:
        early = " yet; the search was interrupted" if plan.interrupted else ""
        yield printable(
            f"{plan.script} does not fit in {within} with anything that was tried{early}"
        )
        yield f"  the least that it took: {format_size(plan.floor_bytes)}"
        if plan.interrupted:
            yield "The search was interrupted; there may be plans that fit."
        return
    if not plan.plan:
        how = "as it is" if _is_plain(plan) else f"under {_allocator(plan)}"
        yield printable(f"{plan.script} fits in {within} {how}: {used}")
    else:
        changes = f"{format_count(len(plan.plan), 'change')}"
        yield printable(f"{plan.script} fits in {within} with {changes}: {used}{_slower(plan)}")
        for change in plan.plan:
            caveat = f" (results differ: {change.caveat})" if change.caveat else ""
            caveat = caveat or (f" ({change.note})" if change.note else "")
            yield f"  {change.name}{caveat}"
        if not _is_plain(plan):
            yield f"  run it under {_allocator(plan)}"
    if plan.as_it_is_bytes > plan.within_bytes:
        yield f"As it is, it takes {format_size(plan.as_it_is_bytes)}."
    if plan.interrupted:
        yield "The search was interrupted; there may be better plans."


def _is_plain(plan: PlanParts) -> bool:
    return plan.allocator == "native" and "python" in plan.command.split()[0]


def _allocator(plan: PlanParts) -> str:
    if plan.allocator == "native":
        return f"{_NATIVE} with {plan.conf}" if plan.conf else _NATIVE
    return f"plimsoll's {plan.allocator} allocator"


def _slower(plan: PlanParts) -> str:
    if plan.slowdown is None or plan.step_seconds is None:
        return ""
    return f", {plan.slowdown:.2f} times the step (about {format_seconds(plan.step_seconds)})"


def _patch(plan: PlanParts) -> Iterator[str]:
    if not plan.fits:
        return
    if plan.patch:
        yield "The changes:"
        yield from (f"  {printable(line)}" for line in plan.patch.splitlines())
    yield f"Run: {plan.command}"


def _front(plan: PlanParts) -> Iterator[str]:
    if len(plan.front) < 2:
        return
    yield "Memory against time; nothing that was tried is better in both:"
    yield from _table(plan.front)


def _alone(plan: PlanParts) -> Iterator[str]:
    single = [tried for tried in plan.tried if len(tried.changes) <= 1 and tried.failure is None]
    if len(single) >= 2:
        yield "Each change alone:"
        yield from _table(single)
    failed = [tried for tried in plan.tried if tried.failure is not None]
    if failed:
        yield "Not possible:"
        for tried in failed:
            yield printable(f"  {' and '.join(tried.changes)}: {tried.failure}")


def _table(rows: list[Tried]) -> Iterator[str]:
    yield f"  {'takes':>12}  {'at least':>12}  {'step, about':>11}"
    for tried in rows:
        assert tried.device_used_bytes is not None
        assert tried.least_used_bytes is not None
        seconds = "-" if tried.step_seconds is None else format_seconds(tried.step_seconds)
        name = " and ".join(tried.changes) or "as it is"
        mark = "" if tried.keeps_results else " (results differ)"
        fits = "fits: " if tried.fits else ""
        yield (
            f"  {format_size(tried.device_used_bytes):>12}  "
            f"{format_size(tried.least_used_bytes):>12}  {seconds:>11}  {fits}{name}{mark}"
        )


def _floor(plan: PlanParts) -> Iterator[str]:
    if plan.fits:
        return
    yield "What holds it there, at the peak:"
    shown = sorted(plan.floor_held.items(), key=lambda entry: -entry[1])
    for name, size in shown:
        if size:
            yield f"  {size_row(size, name.replace('_', ' '))}"


def _effort(plan: PlanParts) -> Iterator[str]:
    yield f"{format_count(plan.simulations, 'simulation')} in {plan.seconds:.0f} s"
