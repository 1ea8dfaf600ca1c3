"""Formats plans as text, with a picture of memory against time."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from rich.text import Text

from plimsoll.base.layout import IN_A_PIPE, Verbatim, paragraphs
from plimsoll.base.units import format_count, format_seconds, format_size, size_row
from plimsoll.prediction.fitting.front_picture import front_keys, front_picture
from plimsoll.prediction.little_room import thin_line
from plimsoll.prediction.plot import Picture, plot
from plimsoll.prediction.text import host_row, kept_apart_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from plimsoll.prediction.fitting.plan_parts import PlanParts, Tried

_ROOM_FOR_NAMES = 72
_MOST_LINES = 6
_TIGHT = 0.95
"""A plan that takes more than this share of the limit leaves little memory."""


def plan_text(plan: PlanParts, width: int | None = None) -> Text:
    """Returns the plan as text: the answer, the patch, and tables of the attempts.

    Args:
        plan: The plan.
        width: The number of columns. If None, lines are not folded.
    """
    pictures = [] if len(plan.front) < 2 else [_picture(plan, width or IN_A_PIPE)]
    return Text("\n\n").join(
        [
            Text(paragraphs([_answer(plan), _patch(plan), _front(plan)], width)),
            *pictures,
            Text(paragraphs([_alone(plan), _failed(plan), _floor(plan), *_ends(plan)], width)),
        ]
    )


def verdict_words(plan: PlanParts) -> dict[str, str]:
    """Returns the reason for the verdict and the next command, in words, for JSON."""
    lines = list(_answer(plan))
    if plan.fits:
        return {"why": lines[0], "next": plan.command}
    return {"why": lines[1].strip(), "next": _larger_card(plan)}


def _larger_card(plan: PlanParts) -> str:
    return (
        f"take a card with {format_size(plan.floor_bytes)} or more (plimsoll gpus lists them), or "
        "use less data in a step"
    )


def runs_picture(plan: PlanParts, width: int = IN_A_PIPE) -> Text | None:
    """Returns a picture of memory over the unchanged run and, below it, over the plan's run.

    Returns None if neither run allocated anything.
    """
    pictures = [
        Picture(f"{plan.gpu}, {name}", timeline, plan.room_bytes)
        for name, timeline in (("unchanged", plan.before), ("with the plan", plan.after))
        if timeline is not None
    ]
    if not plan.plan:
        del pictures[1:]
    return plot(pictures, width, limit_name="the limit") if pictures else None


def _answer(plan: PlanParts) -> Iterator[str]:
    within = f"{format_size(plan.within_bytes)} of {plan.gpu}"
    used = format_size(plan.device_used_bytes)
    how = _how(plan)
    if plan.fits:
        yield f"{plan.script} fits in {within} {how}. It takes {used}{_slower(plan)}"
        yield from _changes(plan)
        yield from _own_options(plan)
        yield from _faster(plan)
        yield from _thin(plan)
        yield from _other_allocators(plan)
        if plan.as_it_is_bytes > plan.within_bytes:
            yield f"  {_as_it_is(plan)}"
    else:
        early = " yet; the search was interrupted" if plan.interrupted else ""
        yield f"{plan.script} does not fit in {within} with anything that plimsoll tried{early}"
        over = plan.floor_bytes - plan.within_bytes
        too_much = f"{format_size(over)} too much"
        says = too_much if over > 0 else "which no run under the limit confirmed"
        yield f"  the least that it took: {format_size(plan.floor_bytes)}, {says}, {how}"
        yield from _changes(plan)
    yield from plan.caveats
    if not plan.fits:
        yield f"Next: {_larger_card(plan)}"
    if plan.host_peak_bytes is not None:
        yield host_row(plan.host_peak_bytes, plan.host_peak_range_bytes)
    if plan.interrupted:
        yield f"The search was interrupted; there may be {'better plans' if plan.fits else 'some'}."


def _other_allocators(plan: PlanParts) -> Iterator[str]:
    """Yields a line for each other allocator with which the plan fits."""
    for each in plan.others:
        title = allocator_title(each.allocator, each.conf)
        used = format_size(each.device_used_bytes)
        yield f"  it also fits under {title}, where it takes {used}: {each.command}"


def _as_it_is(plan: PlanParts) -> str:
    """Says how much memory the script takes as the user runs it now."""
    size = format_size(plan.as_it_is_bytes)
    if plan.plan:
        return f"unchanged, the script takes {size}"
    return f"as it runs now it does not fit: on a card without a limit it takes {size}"


def _how(plan: PlanParts) -> str:
    """Returns the changes and the allocator in words, shortened to fit into a line."""
    names = [change.short for change in plan.plan]
    changes = f"with {_some(names)}" if names else "unchanged"
    if plan.allocator == "native" and not plan.conf:
        return changes
    return f"{changes}, under {allocator_title(plan.allocator, plan.conf)}"


def allocator_title(allocator: str, conf: str) -> str:
    """Returns an allocator's name. For PyTorch's allocator with settings, returns the settings."""
    if allocator == "native":
        return conf or "PyTorch's allocator"
    return f"plimsoll's {allocator} allocator"


def _some(names: Sequence[str]) -> str:
    """Joins the names, as in "a, b and c". If they are too long, ends with "and N more"."""
    count = len(names)
    while count > 1 and len(", ".join(names[:count])) > _ROOM_FOR_NAMES:
        count -= 1
    if count < len(names):
        return f"{', '.join(names[:count])} and {len(names) - count} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _changes(plan: PlanParts) -> Iterator[str]:
    """Yields the changes in full, with their notes."""
    for change in plan.plan:
        caveat = f" (results differ: {change.caveat})" if change.caveat else ""
        caveat = caveat or (f" ({change.note})" if change.note else "")
        yield f"  {change.name}{caveat}"


def _own_options(plan: PlanParts) -> Iterator[str]:
    """Yields a line about an attempt that fits, is not the plan, and only sets script options.

    If there are several such attempts, the line is about the fastest of those that keep the
    results. If none of them keeps the results, it is about the fastest.
    """
    fitting = [
        (not each.keeps_results, each.step_seconds or 0.0, each.device_used_bytes, each.options)
        for each in plan.tried
        if each.options
        and not each.is_plan
        and each.device_used_bytes is not None
        and each.device_used_bytes <= plan.within_bytes
    ]
    if fitting and plan.plan:
        _, seconds, used, options = min(fitting)
        step = f", and a step takes about {format_seconds(seconds)}" if seconds else ""
        yield (
            f"  the script's own {' '.join(options)} makes it fit too: it takes "
            f"{format_size(used or 0)}{step}"
        )


def _faster(plan: PlanParts) -> Iterator[str]:
    """Yields a line about a faster attempt with little free memory, if the plan only sets options.

    The search preferred the slower plan because it leaves more memory.
    """
    mine = next((each.step_seconds for each in plan.tried if each.is_plan and each.options), None)
    tight = [
        (each.step_seconds, each.least_used_bytes, each.short)
        for each in plan.tried
        if each.fits and each.keeps_results and each.step_seconds and each.least_used_bytes
    ]
    faster = [
        each for each in tight if mine and each[0] < mine and each[1] > _TIGHT * plan.within_bytes
    ]
    if faster:
        seconds, used, names = min(faster)
        yield (
            f"  faster, with little to spare: {' + '.join(names) or 'unchanged'}, "
            f"{format_size(used)}, and a step takes about {format_seconds(seconds)} "
            "(--headroom 0 chooses the fastest)"
        )


def _thin(plan: PlanParts) -> Iterator[str]:
    """Yields the reason why a plan that fits may fail on a real GPU, if there is one."""
    ends = plan.device_used_range_bytes
    left = plan.within_bytes - plan.device_used_bytes
    if ends is not None and ends[1] > plan.within_bytes:
        least, most = map(format_size, ends)
        yield (
            f"  may not fit: it takes {least} to {most}, depending on data that plimsoll did not "
            f"compute; {most} does not fit"
        )
    elif plan.gives_cached_back:
        yield "  fits only because cached memory goes back to the driver, which takes time"
    else:
        yield from thin_line(left, plan.within_bytes, of="the limit")


def _slower(plan: PlanParts) -> str:
    if plan.slowdown is None or plan.step_seconds is None:
        return ""
    about = f"about {format_seconds(plan.step_seconds)}"
    if not plan.plan:
        return f", and a step takes {about}"
    return f", and a step takes {plan.slowdown:.2f} times as long ({about})"


def _patch(plan: PlanParts) -> Iterator[str]:
    if not plan.fits:
        return
    if plan.patch:
        yield "The changes:"
        yield from (Verbatim(f"  {line}") for line in plan.patch.splitlines())
    if plan.applied is None:
        yield Verbatim(f"Run: {plan.command}")
    if plan.patch and "CHANGED.py" in plan.command:
        yield "  (--apply CHANGED.py writes the changed script)"
    if plan.page is not None:
        yield f"Page: {plan.page}"


def _front(plan: PlanParts) -> Iterator[str]:
    if len(plan.front) < 2:
        return
    yield "Memory against time; no other try takes less memory and less time:"
    yield from _table(plan.front, plan.within_bytes, front_keys(plan.front))
    yield _legend(plan.front)


def _picture(plan: PlanParts, width: int) -> Text:
    return front_picture(plan.front, plan.tried, plan.within_bytes, width)


def _alone(plan: PlanParts) -> Iterator[str]:
    single = [tried for tried in plan.tried if len(tried.changes) <= 1 and tried.failure is None]
    if len(single) >= 2:
        yield "Each change alone:"
        yield from _table(single, plan.within_bytes)
        if len(plan.front) < 2:
            yield _legend(single)


def _failed(plan: PlanParts) -> Iterator[str]:
    failed = [tried for tried in plan.tried if tried.failure is not None]
    if failed:
        yield "Not possible:"
        for tried in failed:
            yield f"  {' + '.join(tried.short)}: {tried.failure}"


def _legend(rows: Sequence[Tried]) -> str:
    """Returns the sentence that names the allocators of the columns 'takes' and 'at least'."""
    named = [each for each in rows if each.least_allocator is not None]
    least = {allocator_title(each.least_allocator or "", each.least_conf): None for each in named}
    return f"Column 'takes': PyTorch's allocator. Column 'at least': {' or '.join(least)}."


def _table(rows: Sequence[Tried], within: int, keys: Sequence[str] = ()) -> Iterator[str]:
    """Yields the lines of a table of attempts; `keys` are their letters in the picture."""
    margin = "   " if keys else ""
    yield f"  {margin}{'takes':>12}  {'at least':>12}  {'step, about':>11}"
    for key, tried in zip(keys or [""] * len(rows), rows, strict=True):
        assert tried.device_used_bytes is not None
        assert tried.least_used_bytes is not None
        seconds = "-" if tried.step_seconds is None else format_seconds(tried.step_seconds)
        name = " + ".join(tried.short) or "unchanged"
        mark = "" if tried.keeps_results else " (results differ)"
        alone = ""
        if tried.device_used_bytes > within and tried.least_allocator is not None:
            alone = f", under {allocator_title(tried.least_allocator, tried.least_conf)} only"
        fits = f": {'the plan' if tried.is_plan else 'fits'}{alone}" if tried.fits else ""
        yield (
            f"  {key:{len(margin)}}{format_size(tried.device_used_bytes):>12}  "
            f"{format_size(tried.least_used_bytes):>12}  {seconds:>11}  {name}{mark}{fits}"
        )


def _floor(plan: PlanParts) -> Iterator[str]:
    if plan.fits:
        return
    yield f"What holds the {format_size(plan.floor_bytes)}, at the peak:"
    shown = sorted(plan.floor_held.items(), key=lambda entry: -entry[1])
    for name, size in shown:
        if size:
            yield f"  {size_row(size, name.replace('_', ' '))}"
    if plan.floor_lines:
        yield "Lines that hold the most at the peak:"
        for line in plan.floor_lines[:_MOST_LINES]:
            yield f"  {size_row(line.bytes, line.line)}"


def _ends(plan: PlanParts) -> list[Iterator[str]]:
    return [kept_apart_lines(plan.kept_apart), _applied(plan), _effort(plan)]


def _applied(plan: PlanParts) -> Iterator[str]:
    """Yields the file that was written, and the whole command that runs it."""
    if plan.applied is None:
        return
    what = "the changed script" if plan.plan else "the script unchanged"
    yield f"{plan.applied} has {what}, with this command at its head:"
    yield Verbatim(f"  {plan.command}")
    if shlex.quote(plan.applied) not in plan.command:
        yield f"  (it runs the module {plan.script}, whose file {plan.applied} replaces)"


def _effort(plan: PlanParts) -> Iterator[str]:
    yield f"{format_count(plan.simulations, 'simulation')} in {plan.seconds:.0f} s"
