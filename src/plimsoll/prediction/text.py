"""Formats predictions as text."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.base.layout import Verbatim, paragraphs
from plimsoll.base.printable import printable
from plimsoll.base.units import (
    format_count,
    format_range,
    format_seconds,
    format_size,
    has_share,
    size_row,
)
from plimsoll.prediction.assumed import ENDED_BY_SIGNAL, PACE, STARTED_PROGRAM, deciding
from plimsoll.prediction.assumed_text import assumed_lines
from plimsoll.prediction.caveats import (
    PIECES,
    caught_requests,
    caught_text,
    caveats,
    fewer_steps_text,
    is_in_pieces,
    stopped_text,
    unsteady_text,
)
from plimsoll.prediction.gpu_rows import gpu_rows
from plimsoll.prediction.job_text import card_of, is_job, job_verdict, rate_text, shared_card_rows
from plimsoll.prediction.little_room import doubt, spare_caveats, spare_words
from plimsoll.prediction.need_text import (
    endless_text,
    lack_text,
    need_figure,
    other_cards_text,
    rescue_text,
)
from plimsoll.prediction.parts import FEWEST_STEPS, INTERRUPTED
from plimsoll.prediction.serving_text import serving_lines, serving_verdict, serving_why
from plimsoll.prediction.step_growth import STEPS, growth_bytes, steady_from
from plimsoll.prediction.trials.written import shown
from plimsoll.recordings.analysis.category_names import category_title
from plimsoll.recordings.causes.cause import main_cause, other_growth
from plimsoll.recordings.causes.wording import also, most_held, why

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from plimsoll.prediction.compiled_use import EagerUse
    from plimsoll.prediction.parts import GpuUse, PredictionParts
    from plimsoll.prediction.trials.kept_apart import KeptApart
    from plimsoll.prediction.trials.written import Written
    from plimsoll.recordings.causes.cause import Cause

_MOST_LINES = 6
_MOST_PROCESSES = 8
_MOST_WRITTEN = 6
_LEAST_SECONDS = 5e-7
_MEASURED = "H200"
"""The card on which plimsoll's kernel times were measured."""
_MOST_COMPILED = 6


def prediction_text(
    prediction: PredictionParts, width: int | None = None, follow: Sequence[str] = ()
) -> str:
    """Returns the whole prediction, without colour.

    Args:
        prediction: The prediction.
        width: The number of columns; if None, lines are not folded.
        follow: The words of the command that the user probably wants next; empty if there is none.
    """
    if not prediction.uses_cuda:
        first = f"{prediction.script} never touches CUDA: it needs no GPU memory."
        started = [each for each in prediction.assumptions if each.what == STARTED_PROGRAM]
        if started:
            first = (
                f"{prediction.script} itself never touches CUDA. plimsoll does not see the Python "
                "programs that the script started: predict each of them by itself"
            )
        programs = [f"  {each.operation}" for each in started]
        files = [written_lines(prediction.written), kept_apart_lines(prediction.kept_apart)]
        return paragraphs([[first, *programs], *files], width)
    sections = (
        *(serving_lines, _categories, _lines, _plan, _shared, _in_shared, _compiled, _steps),
        _fewer_steps,
        *(_time, other_cards_text),
        lambda p: assumed_lines(p.assumptions),
    )
    job = [*job_verdict(prediction, width)]
    own = [*_verdict(prediction, width)]
    lead = job or own  # the first paragraph; its first line is the verdict
    lead[1:1] = answer_lines(prediction, follow)
    return paragraphs(
        [
            job,
            own,
            *(section(prediction) for section in sections),
            written_lines(prediction.written),
            kept_apart_lines(prediction.kept_apart),
            _effort(prediction),
        ],
        width,
    )


def short_text(
    prediction: PredictionParts, width: int | None = None, follow: Sequence[str] = ()
) -> str:
    """Returns the verdict, its caveats, the reason, and a change to try or else the next command.

    Takes the same arguments as `prediction_text`.
    """
    if not prediction.uses_cuda:
        return prediction_text(prediction, width).partition("\n\n")[0]
    verdict = [*job_verdict(prediction, width)][:1] or [headline(prediction)]
    return paragraphs([[*verdict, *caveats(prediction), *answer_lines(prediction, follow)]], width)


def answer_lines(p: PredictionParts, follow: Sequence[str]) -> Iterator[str]:
    """Yields the reason for the verdict, and a change to try or else the next command to run."""
    line = _why(p)
    if line is not None:
        yield line
    if (patch := _patch(p)) is not None:
        yield Verbatim(f"Try: {patch}")
    elif follow:
        yield Verbatim(f"Next: {shlex.join(follow)}")
    grows = None if p.serving is not None else other_growth(p.causes, _cause(p))
    if grows is not None:
        yield also(grows)


def verdict_words(
    p: PredictionParts, follow: Sequence[str]
) -> dict[str, str | bool | list[str] | None]:
    """Returns the verdict's reason, its doubt, its caveats and the next step, for JSON.

    Args:
        p: The prediction.
        follow: The words of the command that the user probably wants next; empty if there is none.
    """
    if p.fits is None:
        why_it_is = p.why_unknown
    elif not p.uses_cuda:
        why_it_is = f"{p.script} never touches CUDA."
    else:
        why_it_is = (_why(p) or headline(p)).removeprefix("Why: ")
    next_step = _patch(p) or (shlex.join(follow) if follow else None)
    says = [*spare_caveats(p), *caveats(p)]
    return {
        "why": why_it_is,
        "may_not_fit": doubt(p) is not None,
        "caveats": says,
        "next": next_step,
    }


def _why(p: PredictionParts) -> str | None:
    if (serving := serving_why(p)) is not None:
        return serving
    cause = _cause(p)
    return most_held(p.by_category, p.top_lines) if cause is None else why(cause)


def _cause(p: PredictionParts) -> Cause | None:
    """Returns the main cause of the card's memory; None if there is none.

    Advice on host memory saves nothing on the card, so it is no answer to whether a script fits.
    """
    on_card = [cause for cause in p.causes if not cause.on_host]
    return main_cause(on_card, p.peak_reserved_bytes)


def _patch(p: PredictionParts) -> str | None:
    """Returns a change that saves memory: a line of code or a setting.

    For a serving engine, the change is the option that limits requests to the greatest length that
    fits. Otherwise it is the change for the main cause. Returns None if no change is
    known, or if the change saves too little.
    """
    if p.serving is not None:
        length = p.serving.fitting_len
        return f"--max-model-len {length}" if length else None
    cause = _cause(p)
    helps = cause is not None and not cause.hardly_helps(p.peak_reserved_bytes)
    return cause.patch if cause is not None and cause.patch and helps else None


def whose_line(p: PredictionParts) -> str | None:
    """Returns the sentence that says which process the figures describe.

    Returns None if the script is no job and started no process that used a GPU.
    """
    if is_job(p):
        return (
            f"{len(p.ranks)} ranks used simulated GPUs; what follows describes rank "
            f"{p.worst_rank}, which has the least to spare"
        )
    if not p.processes or p.worst_rank is not None:
        return None
    count = len({use.process for use in p.processes})
    reserved = format_size(p.peak_reserved_bytes)
    if count == 1:
        return printable(
            f"1 process that {p.script} started used a simulated GPU: it took {reserved}"
        )
    largest = f"the memory below is that of the process that took the most, {reserved}"
    if not p.shared_cards:
        return f"{count} processes used simulated GPUs, each a different one; {largest}"
    return f"{count} processes used simulated GPUs, and the verdict counts all of them; {largest}"


def _processes(p: PredictionParts) -> Iterator[str]:
    line = whose_line(p)
    if line is not None:
        yield line
        yield from (f"  {row}" for row in [*_process_rows(p), *shared_card_rows(p)])


def _process_rows(p: PredictionParts) -> Iterator[str]:
    """Yields a row for each of the largest processes.

    Yields nothing for a single process, because the figures above the rows describe it.
    """
    uses = sorted(p.processes, key=lambda use: -(use.card_bytes or use.peak_reserved_bytes or 0))
    if len(uses) == 1 and uses[0].peak_reserved_bytes is not None:
        return
    for use in uses[:_MOST_PROCESSES]:
        if use.peak_allocated_bytes is None or use.peak_reserved_bytes is None:
            taken = (
                "what it took is not known"
                if use.card_bytes is None
                else f"it had up to {format_size(use.card_bytes)} of the card, context included"
            )
            where = "" if use.device is None else f", GPU {use.device}"
            yield f"process {use.process}{where}: ended by a signal; {taken}"
            continue
        yield (
            f"process {use.process}, GPU {use.device}: allocated "
            f"{format_size(use.peak_allocated_bytes)}, reserved "
            f"{format_size(use.peak_reserved_bytes)}"
        )
    if len(uses) > _MOST_PROCESSES:
        yield "…"


def _verdict(p: PredictionParts, width: int | None) -> Iterator[str]:
    if is_job(p):
        yield f"Rank {p.worst_rank}:"
    else:
        yield headline(p)
        yield from _processes(p)
    fullest = _fullest_of_several(p)
    if fullest is not None:
        yield from gpu_rows(p.devices, width)
        yield f"GPU {fullest.device}:"
    yield from _figures(p)


def headline(p: PredictionParts) -> str:
    """Returns the sentence that says whether the script fits, and by how much."""
    where = card_of(p)
    if p.fits is None:
        return f"Whether {p.script} fits on {where} is not known: {p.why_unknown}"
    why_not = doubt(p)
    verdict = "does not fit" if not p.fits else "fits" if why_not is None else "may not fit"
    if (serving := serving_verdict(p)) is not None:
        return f"{p.script} {verdict} on {where}: {serving}"
    so_far = " so far" if p.stopped else ""
    if p.fits:
        spare = spare_words(p)
    elif p.headroom_bytes >= 0:
        spare = f"{format_size(p.headroom_bytes)} to spare"
    else:
        spare = lack_text(p)
    fullest = _fullest_of_several(p)
    if fullest is not None:
        which = "the least" if p.headroom_bytes >= 0 else "the worst"
        spare += f" on GPU {fullest.device}, {which} of its {len(p.devices)} GPUs"
    and_why = "" if why_not is None else f", and {why_not}"
    early = ", and no step of an optimizer has ended yet" if _is_early(p) else ""
    return f"{p.script} {verdict} on {where}{so_far}: {spare}{rescue_text(p)}{and_why}{early}"


def _is_early(p: PredictionParts) -> bool:
    """Returns whether the user interrupted the script before the end of a step."""
    is_interrupted = p.stopped is not None and p.stopped.why == INTERRUPTED
    return is_interrupted and not p.step_peaks_bytes and p.step is None


def _fullest_of_several(p: PredictionParts) -> GpuUse | None:
    """Returns the GPU with the least headroom. The figures in the report describe this GPU.

    Returns None if the process used only one GPU. Also returns None if the script is no job and
    started processes that used GPUs. The report then has rows for these processes.
    """
    if len(p.devices) < 2 or (p.processes and not is_job(p)):
        return None
    return min(p.devices, key=lambda use: use.headroom_bytes or 0)


def _figures(p: PredictionParts) -> Iterator[str]:
    if p.stopped is not None:
        yield f"  {stopped_text(p.stopped)}"
    if is_in_pieces(p):
        yield f"  ({PIECES})"
    allocated, reserved = p.peak_allocated_range_bytes, p.peak_reserved_range_bytes
    decides = _what_decides(p)
    yield f"  peak allocated   {_figure(p.peak_allocated_bytes, allocated, decides)}"
    of_run = _figure(p.peak_reserved_bytes, reserved, decides)
    yield f"  peak reserved    {of_run}{endless_text(p)}"
    if p.fits is False and p.serving is None:
        yield f"  would need       {need_figure(p)}; the card has {memory_text(p)}"
    else:
        used = _figure(p.device_used_bytes, p.device_used_range_bytes)
        yield f"  nvidia-smi shows {used} of {memory_text(p)}"
    if p.limit_bytes is not None:
        limit = format_size(p.limit_bytes)
        yield f"  script's limit   {limit:>12}, which it sets for what PyTorch reserves"
    growth = growth_bytes(p.step_peaks_bytes)
    if growth is not None:
        yield f"  grows each step  {format_size(growth):>12}, and did so in the last {STEPS} steps"
    if p.nccl_bytes:
        bounds = format_range(p.nccl_range_bytes)
        yield f"  NCCL's part      {format_size(p.nccl_bytes):>12}{bounds}"
    yield from host_lines(p)
    if caught := caught_requests(p):
        yield f"  {caught_text(caught)}"


def memory_text(p: PredictionParts) -> str:
    """Formats the card's memory, and the part that other programs use."""
    whole = format_size(p.total_bytes + p.used_bytes)
    return f"{whole}, {format_size(p.used_bytes)} of it used by others" if p.used_bytes else whole


def host_lines(p: PredictionParts) -> Iterator[str]:
    """Yields the lines about host memory, with advice that saves host memory."""
    if p.host_peak_bytes is not None:
        whole = ", of one machine with all its ranks" if is_job(p) else ""
        yield f"{host_row(p.host_peak_bytes, p.host_peak_range_bytes)}{whole}"
    for cause in p.causes:
        if cause.on_host:
            yield f"    {why(cause).removeprefix('Why: ')}"
            if cause.patch:
                yield f"    Try: {cause.patch}"


def host_row(peak_bytes: int, bounds: tuple[int, int] | None) -> str:
    """Formats the row with the peak of host memory and its range."""
    return f"  host memory      {format_size(peak_bytes):>12}{format_range(bounds)}, estimated"


def _figure(size: int, bounds: tuple[int, int] | None, decides: str = "") -> str:
    """Formats a figure and its range.

    If the figure depends on the host's pace, the figure is one end of its range. The text then has
    only the range.
    """
    by = f", depending on {decides}" if decides else ""
    if bounds is not None and decides.startswith(PACE):
        least, most = map(format_size, bounds)
        if least != most:
            return f"{least:>12} to {most}{by}"
    return f"{format_size(size):>12}{format_range(bounds, by)}"


def _what_decides(p: PredictionParts) -> str:
    if not p.top_lines and any(each.what == ENDED_BY_SIGNAL for each in p.assumptions):
        return "the process that a signal ended"
    return deciding(p.assumptions)


def _categories(p: PredictionParts) -> Iterator[str]:
    if p.peak_allocated_bytes:
        yield "At the peak:"
    for name, size in _largest_first(p.by_category):
        if has_share(size, p.peak_allocated_bytes):
            yield f"  {size_row(size, name, p.peak_allocated_bytes)}"


def _lines(p: PredictionParts) -> Iterator[str]:
    if p.top_lines:
        yield "Lines that hold the most at the peak:"
    for line in p.top_lines[:_MOST_LINES]:
        yield f"  {size_row(line.bytes, line.line)}"


def _plan(p: PredictionParts) -> Iterator[str]:
    if p.plan is not None:
        yield f"Plan: {p.plan.line()}."


def _shared(p: PredictionParts) -> Iterator[str]:
    if p.shared is None:
        return
    by = "Windows' driver, silently" if p.driver == "wddm" else "the allocator"
    until = ", until both memories were spent" if p.fits is False else ""
    is_placed = p.shared.peak_allocated_bytes and not p.shared.num_spills
    yield "Placed there by the program:" if is_placed else f"Spilled by {by}{until}:"
    for text in p.shared.lines():
        yield f"  {text}"


def _in_shared(p: PredictionParts) -> Iterator[str]:
    if p.shared is None or not p.shared.peak_allocated_bytes:
        return
    yield "In shared memory, when it held the most:"
    for name, size in _largest_first(p.shared_by_category):
        yield f"  {size_row(size, name)}"
    for line in p.shared_lines[:_MOST_LINES]:
        yield f"  {size_row(line.bytes, line.line)}"


def _compiled(p: PredictionParts) -> Iterator[str]:
    use = p.compiled
    if use is None:
        return
    counts = [
        format_count(len(use.functions), "function") * bool(use.functions),
        format_count(sum(each.graphs for each in use.functions), "graph") * bool(use.functions),
        format_count(sum(use.graph_breaks.values()), "graph break") * bool(use.graph_breaks),
        format_count(use.cuda_graphs, "CUDA graph") * bool(use.cuda_graphs),
    ]
    if use.launches:
        counts.append(
            f"{format_count(use.kernels, 'kernel')} of Triton's in "
            f"{format_count(use.launches, 'launch', 'launches')}"
        )
    yield f"Compiled: {', '.join(filter(None, counts))}"
    for each in [each for each in use.functions if each.recompilations][:_MOST_COMPILED]:
        why = "" if each.reason is None else f": {each.reason}"
        yield f"  compiled again {format_count(each.recompilations, 'time')}, {each.line}{why}"
    for reason, count in list(use.graph_breaks.items())[:_MOST_COMPILED]:
        yield f"  graph broken {format_count(count, 'time')}: {reason}"
    if use.first_calls_bytes:
        parts = [f"{what} {format_size(n)}" for what, n in _largest_first(use.first_calls_bytes)]
        here = "" if use.peak_in is None else f"; the peak is while {use.peak_in}"
        yield f"  first calls take, at most: {', '.join(parts)}{here}"
    if use.eager is not None:
        yield f"  {_eagerly(p, use.eager)}"


def _eagerly(p: PredictionParts, eager: EagerUse) -> str:
    """Returns the sentence about the memory and time that compiling saves or costs."""
    percent = 100 * (p.peak_reserved_bytes / max(1, eager.peak_reserved_bytes) - 1)
    text = (
        f"run eagerly: peak allocated {format_size(eager.peak_allocated_bytes)}, "
        f"reserved {format_size(eager.peak_reserved_bytes)}; "
        f"compiled reserves {abs(percent):.0f}% {'more' if percent > 0 else 'less'}"
    )
    if p.step_seconds is None or eager.step_seconds is None:
        return text
    times = format_seconds(p.step_seconds), format_seconds(eager.step_seconds)
    return f"{text}, and a step takes {times[0]} instead of {times[1]}"


def _steps(p: PredictionParts) -> Iterator[str]:
    peaks = p.step_peaks_bytes
    if len(peaks) < 2:
        return
    first = steady_from(peaks)
    if first is None:
        yield unsteady_text(peaks)
    elif first:
        yield f"Memory use repeats from step {first} on ({len(peaks)} steps were run)."


def _fewer_steps(p: PredictionParts) -> Iterator[str]:
    if p.fewer_steps is not None:
        yield fewer_steps_text(p.fewer_steps)


def _time(p: PredictionParts) -> Iterator[str]:
    step = p.step
    if step is None:
        if 0 < len(p.step_peaks_bytes) < FEWEST_STEPS and p.fits:
            yield f"The time of a step is not known: it needs {FEWEST_STEPS} steps of an optimizer."
        return
    low, high = map(format_seconds, step.seconds_range)
    rate = p.samples_per_second
    samples = "" if rate is None else f", {rate_text(rate, p.world_size)}"
    about = format_seconds(step.seconds)
    own = p.gpu == _MEASURED
    scaled = "" if own else f" from times on an {_MEASURED}, scaled by the cards' rates"
    yield f"A {step.what} takes about {about} ({low} to {high}){samples}; estimated{scaled}:"
    for name, seconds in (
        ("computing", step.compute_seconds),
        ("communicating only", step.communicating_seconds),
        ("copying only", step.copies_seconds),
        ("waiting for the host", step.waiting_seconds),
    ):
        if seconds >= _LEAST_SECONDS:
            yield f"  {name:20} {format_seconds(seconds):>9}"
    if step.network_gbit_per_s is not None:
        yield (
            f"All collectives take {format_seconds(step.collectives_seconds)}, partly beside "
            f"kernels. plimsoll assumes {step.network_gbit_per_s} Gbit/s of network for each GPU."
        )
    if step.ends_at is not None:
        yield f"The script has several optimizers; a step ends at {step.ends_at}."
    if not step.lines:
        return
    count = format_count(step.kernels, "operation")
    yield f"Lines that take the most time (a {step.what} has {count}):"
    for line in step.lines:
        yield f"  {format_seconds(line.seconds):>9}  {line.line}"


def written_lines(written: list[Written]) -> Iterator[str]:
    """Yields lines with the largest files that the script wrote."""
    if not written:
        return
    yield "The script wrote these files, and plimsoll discarded them:"
    for one in written[:_MOST_WRITTEN]:
        yield f"  {size_row(one.bytes, one.path)}{'' if one.kind == 'new' else f', {one.kind}'}"
    if len(written) > _MOST_WRITTEN:
        yield f"  and {len(written) - _MOST_WRITTEN} more"


def kept_apart_lines(kept_apart: KeptApart | None) -> Iterator[str]:
    """Yields lines with the writes that failed because plimsoll could not redirect them."""
    if kept_apart is None or not kept_apart.refused:
        return
    yield (
        "plimsoll refused these writes, because it cannot discard them on this machine "
        "(--keep-writes allows them):"
    )
    for one in kept_apart.refused[:_MOST_WRITTEN]:
        times = f", {format_count(one.count, 'time')}" if one.count > 1 else ""
        yield f"  {printable(shown(Path(one.path)))}, by {printable(Path(one.program).name)}{times}"
    if len(kept_apart.refused) > _MOST_WRITTEN:
        yield f"  and {len(kept_apart.refused) - _MOST_WRITTEN} more"


def _effort(p: PredictionParts) -> Iterator[str]:
    events = format_count(p.events, "memory event")
    yield f"plimsoll simulated {events} in {p.seconds:.1f} s, under PyTorch {p.torch}"


def _largest_first(sizes: dict[str, int]) -> list[tuple[str, int]]:
    """Returns the categories with sizes above zero, in words, the largest first."""
    shown = [(category_title(name), size) for name, size in sizes.items() if size]
    return sorted(shown, key=lambda entry: -entry[1])
