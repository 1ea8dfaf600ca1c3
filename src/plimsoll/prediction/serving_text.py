"""Formats a serving engine's use of its card."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.base.printable import printable
from plimsoll.base.units import format_range, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.prediction.parts import PredictionParts
    from plimsoll.torch.simulated.serving_use import ServingUse, SleepUse

_GRAPHS = "CUDA graphs"
_FREE = "free"
_OPTIONS = {
    "vLLM": ("gpu_memory_utilization", "the rest leaves", "max_num_seqs"),
    "SGLang": ("mem_fraction_static", "the weights leave", "max_running_requests"),
}
"""Three texts for each engine.

The first is the option that sets the engine's part of the card. The second completes the sentence
that says how much of this part is left for the KV cache. The third is the option that bounds the
parallel requests.
"""
_WHILE = {
    "start": "while it starts",
    "weights": "while it loads the weights",
    "profiling": "in its profiling step",
    "kv_cache": "while it makes the KV cache",
    "warm_up": "while it warms up",
    "capture": "while it captures CUDA graphs",
    "load": "under load",
    "sleep": "while it goes to sleep",
    "wake_up": "while it wakes up",
}


def serving_verdict(p: PredictionParts) -> str | None:
    """Returns the headline, which says how the engine starts or fails; None without an engine."""
    use = p.serving
    if use is None:
        return None
    why_not = serving_failure(use, ran_out=p.out_of_memory is not None)
    if why_not is not None:
        return f"{use.engine} {why_not}"
    several = f" on {len(p.ranks)} ranks" if len(p.ranks) > 1 else ""
    return f"{use.engine} starts{several}, and leaves {format_size(p.headroom_bytes)}"


def serving_failure(use: ServingUse, *, ran_out: bool) -> str | None:
    """Returns how an engine failed, as words that begin with a verb; None if it served the load.

    Args:
        use: How the engine divided the card.
        ran_out: Whether the program ran out of memory.
    """
    if use.refusal is not None:
        if use.missing_bytes is None or use.missing_bytes <= 0:
            return "refuses to start"
        return f"refuses to start, {format_size(use.missing_bytes)} too little"
    if use.failed_in is not None or ran_out:
        return f"runs out of memory {_WHILE[use.failed_in or use.stage]}"
    return None if use.stage == "load" else "had not started when the script ended"


def room_text(use: ServingUse) -> str:
    """Returns how many tokens an engine's KV cache holds, and for how many requests they suffice.

    Each of these requests has `max_model_len` tokens.
    """
    tokens = f"{use.kv_tokens or 0:,} tokens of KV cache"
    if use.longest_requests is None:
        return tokens
    return f"{tokens}, {use.longest_requests:.1f} requests of {use.max_model_len:,}"


def serving_why(p: PredictionParts) -> str | None:
    """Returns why the engine refuses to start, cannot wake, or has so large a KV cache.

    Returns None if the reason is unknown.
    """
    use = p.serving
    if use is None:
        return None
    if use.refusal is not None:
        return printable(f"Why: {use.refusal}")
    if use.failed_in == "wake_up" and (asleep := _last_sleep(use)) is not None:
        return (
            f"Why: waking takes {format_size(asleep.unmapped_bytes)} again, and the card has "
            f"{format_size(asleep.free_bytes or 0)} free."
        )
    if use.kv_cache_bytes and use.utilization is not None:
        part, leaving, _ = _options(use)
        return (
            f"Why: the KV cache takes {format_size(use.kv_cache_bytes)}, which is all that "
            f"{leaving} of {use.utilization:g} of the card ({part})."
        )
    return None


def _options(use: ServingUse) -> tuple[str, str, str]:
    return _OPTIONS[use.engine.partition(" ")[0]]


def serving_lines(p: PredictionParts) -> Iterator[str]:
    """Yields lines with the engine's own figures.

    The lines tell how the engine divides the card, what limits parallel requests, and what stays on
    the card while the engine sleeps.
    """
    use = p.serving
    if use is None or all(size is None for _, size in _sizes(use)):
        return
    several = f", each of {len(p.ranks)} ranks" if len(p.ranks) > 1 else ""
    yield f"{use.engine}, by its own account{several}:"
    ranks = [dict(_sizes(rank.serving)) for rank in p.ranks if rank.serving is not None]
    for name, size in _sizes(use):
        if size is not None:
            bounds = format_range(use.graph_range_bytes) if name == _GRAPHS else ""
            figure = _of_ranks([size, *(rank[name] for rank in ranks)])
            what = _explained(use, name)
            yield f"  {name:16} {figure:>12}{bounds}{f'  {what}' if what else ''}"
    if (bound := _bound(use)) is not None:
        yield f"  {bound}"
    for asleep in use.sleeps:
        name = "asleep" if asleep.level is None else f"asleep, level {asleep.level}"
        yield f"  {name:16} {format_size(asleep.left_bytes):>12}  {_of_sleep(asleep)}"


def _last_sleep(use: ServingUse) -> SleepUse | None:
    """Returns the sleep from which the engine woke last; None if it never woke."""
    woken = [each for each in use.sleeps if each.free_bytes is not None]
    return woken[-1] if woken else None


def _of_sleep(asleep: SleepUse) -> str:
    parts = [f"stays on the card; sleep frees {format_size(asleep.freed_bytes)}"]
    if asleep.host_bytes:
        parts.append(f"takes {format_size(asleep.host_bytes)} of host memory")
    if asleep.waking_bytes is not None:
        parts.append(f"waking takes {format_size(asleep.waking_bytes)}")
    return ", ".join(parts)


def _sizes(use: ServingUse) -> Iterator[tuple[str, int | None]]:
    yield "weights", use.weights_bytes
    yield "activations", use.activation_bytes
    yield "outside PyTorch", use.outside_bytes
    yield "KV cache", use.kv_cache_bytes
    yield _GRAPHS, use.graph_bytes if use.graph_sizes else None
    yield _FREE, use.available_bytes


def _of_ranks(sizes: list[int | None]) -> str:
    """Formats the ranks' sizes as a range, such as "1 GiB to 2 GiB"; one size if all are equal."""
    known = [size for size in sizes if size is not None]
    ends = dict.fromkeys(map(format_size, (min(known), max(known))))
    return " to ".join(ends)


def _explained(use: ServingUse, name: str) -> str:
    if name == "activations" and use.max_num_batched_tokens:
        return f"in a step of {use.max_num_batched_tokens:,} tokens"
    if name == "KV cache" and use.kv_tokens:
        return f"{use.kv_tokens:,} tokens"
    if name == _FREE:
        return "once it is ready (available_gpu_mem)"
    return f"for {use.graph_sizes} sizes of batches" if name == _GRAPHS else ""


def _bound(use: ServingUse) -> str | None:
    """Returns the sentence on what limits parallel requests: the KV cache, or `max_num_seqs`."""
    longest, most = use.longest_requests, use.max_num_seqs
    if longest is None or most is None:
        return None
    *_, option = _options(use)
    asked = f"{use.max_model_len:,} tokens"
    if longest < most:
        return (
            f"the KV cache limits parallel requests: {longest:.1f} of {asked}, or up to "
            f"{most:,} shorter ones ({option})"
        )
    return f"{option} limits parallel requests: {most:,}, even of {asked} each"
