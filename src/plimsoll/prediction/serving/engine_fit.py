"""Finds how an engine can serve: an option's best value, the smallest card, or new options."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from plimsoll.base.errors import InputError
from plimsoll.engine.gpus.profiles import gpu_profile, gpu_profiles
from plimsoll.prediction.fitting.headroom import Headroom
from plimsoll.prediction.options import Options
from plimsoll.prediction.parts import INTERRUPTED
from plimsoll.prediction.recipes.served import VLLM, engine_cards, given
from plimsoll.prediction.serving.engine_search import Bounds, EngineSearch
from plimsoll.prediction.serving.engine_trials import EngineTrials
from plimsoll.prediction.serving.parts import CARD, EngineFitParts
from plimsoll.prediction.serving.trial_ends import card_is_too_full, lacks_cache, longest_request
from plimsoll.prediction.serving.varied_options import (
    LENGTH,
    PARALLEL,
    PARALLELS,
    SHARE,
    Varied,
    is_least,
)
from plimsoll.prediction.sweeps.results_file import ResultsFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from os import PathLike

    from plimsoll.prediction.serving.engine_trials import Progress
    from plimsoll.prediction.serving.parts import EngineBorder

DEFAULT_GPU = "H100"
_QUANTIZED = ("--quantization", "fp8")
_SMALL_CACHE = ("--kv-cache-dtype", "fp8")


def fit_engine(
    arguments: Sequence[str],
    vary: Sequence[str] = (),
    *,
    gpu: str | None = None,
    bounds: Bounds | None = None,
    headroom: int | str | None = None,
    results: str | PathLike[str] | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> EngineFitParts:
    """Finds an option's value, a card, or changes of the command with which an engine serves.

    The value is the largest with which the engine serves, or the smallest for tensor parallelism.
    The card is the smallest.

    Each trial runs the engine under the load of `plimsoll predict vllm serve`.

    Args:
        arguments: The arguments after `vllm serve`.
        vary: The options to vary, as `Varied.parse` takes them. If it is empty and `gpu` is given,
            plimsoll tries changes of the command until the engine serves.
        gpu: The card. The default is an H100 if `vary` names an option to search. Otherwise
            plimsoll looks for the smallest card.
        bounds: The values that may be tried.
        headroom: The memory that must stay free under load, such as "2GiB" or "5%" of the card.
        results: A .parquet file that keeps the results of finished trials, so that a later search
            does not run them again. A sweep can use the same file.
        progress: As for `EngineTrials`.
        options: The options of `predict`.

    Raises:
        InputError: If an argument is bad. Also if the engine never serves, and fails for a reason
            other than memory.
    """
    varied, bounds = Varied.parse(vary), bounds or Bounds()
    if gpu is None and varied.searched is not None:
        gpu = DEFAULT_GPU
    _check(varied, bounds)
    asked = Options(gpu=gpu or DEFAULT_GPU, **options)
    kept = None if results is None else ResultsFile(results)
    with nullcontext() if kept is None else kept:
        trials = EngineTrials(
            arguments, asked, Headroom.parse(headroom), kept, progress or (lambda *_: None)
        )
        search = EngineSearch(trials, bounds)
        if gpu is not None and varied.searched is None and varied.choices == ({},):
            found = list(_until_it_serves(search, trials, gpu, asked.gpus))
        else:
            found = _best_first(_for_choices(search, varied, gpu, asked.gpus))
            _require_a_start(found)
    return EngineFitParts(
        command=["vllm", "serve", *arguments],
        gpu=None if gpu is None else gpu_profile(gpu).name,
        vary=CARD if gpu is None else varied.searched,
        found=found,
        tried=trials.tried,
        stopped=INTERRUPTED if search.is_interrupted else None,
        seconds=sum(each.seconds for each in trials.tried),
        not_kept=trials.not_kept,
    )


def _check(varied: Varied, bounds: Bounds) -> None:
    is_bounded = bounds != Bounds(is_exact=bounds.is_exact)
    if is_bounded and varied.searched in (None, PARALLEL, SHARE):
        raise InputError(
            "--start, --at-most and --multiple-of are for an option whose largest whole number is "
            "looked for, as with --vary=--max-model-len"
        )
    if bounds.multiple_of < 1 or not 1 <= (bounds.start or 1) <= (bounds.at_most or 1 << 62):
        raise InputError("the values to try begin at 1 or above, and end where they begin or above")


def _for_choices(
    search: EngineSearch, varied: Varied, gpu: str | None, gpus: int | None
) -> Iterator[EngineBorder]:
    for settings in varied.choices:
        if gpu is None:
            yield search.smallest_card(_cards(), settings)
        elif varied.searched is None:
            yield search.alone(gpu, settings)
        elif varied.searched == PARALLEL:
            yield search.least(gpu, settings, _parallels(gpus))
        else:
            yield search.largest(gpu, varied.searched, settings)
        if search.is_interrupted:
            return


def _require_a_start(found: Sequence[EngineBorder]) -> None:
    """Raises InputError if a reason other than memory made the engine fail in every search."""
    beyond = [each.beyond for each in found if each.trial is None and each.beyond is not None]
    errors = [each.error for each in beyond if each.error is not None]
    if errors and len(errors) == len(found):
        raise InputError(found[0].stopped or f"the engine fails: {errors[0]}")


def _parallels(gpus: int | None, above: int = 0) -> list[int]:
    """Returns the numbers of cards to try, above `above` and up to `gpus` (None: no bound)."""
    return [each for each in PARALLELS if each > above and (gpus is None or each <= gpus)]


def _until_it_serves(
    search: EngineSearch, trials: EngineTrials, gpu: str, gpus: int | None
) -> Iterator[EngineBorder]:
    """Yields the result of the unchanged command, then of each change, until the engine serves.

    `--gpu-memory-utilization` and `--max-model-len` are changed first, because they do not change
    the model's arithmetic. Then come 8-bit formats, and last more cards.
    """
    own = search.alone(gpu, {})
    yield own
    if own.beyond is None:
        return
    if own.beyond.error is not None:
        raise InputError(f"the engine fails: {own.beyond.error}")
    if card_is_too_full(own.beyond):
        yield (border := search.largest(gpu, SHARE, {}))
        if border.trial is not None or search.is_interrupted:
            return
    if longest_request(own.beyond) is not None:
        yield (border := search.largest(gpu, LENGTH, {}))
        if border.trial is not None or search.is_interrupted:
            return
    for name, value in (_SMALL_CACHE, _QUANTIZED):
        is_of_use = name != _SMALL_CACHE[0] or lacks_cache(own.beyond)
        if not is_of_use or given(trials.arguments, name) is not None:
            continue
        yield (border := _with_length(search, gpu, {name: value}))
        if border.trial is not None or search.is_interrupted:
            return
    if more := _parallels(gpus, above=engine_cards(VLLM, trials.arguments)):
        yield search.least(gpu, {}, more)


def _with_length(search: EngineSearch, gpu: str, settings: dict[str, str]) -> EngineBorder:
    """Tries settings. If they fail only because requests are too long, finds the largest length."""
    border = search.alone(gpu, settings)
    if border.beyond is None or longest_request(border.beyond) is None:
        return border
    return search.largest(gpu, LENGTH, settings)


def _best_first(found: Iterable[EngineBorder]) -> list[EngineBorder]:
    def rank(border: EngineBorder) -> tuple[bool, float]:
        trial = border.trial
        if trial is None:
            return True, 0.0
        if border.vary == CARD:
            return False, float(trial.total_bytes or 0)
        if border.vary is None:
            return False, -float((trial.serving and trial.serving.kv_tokens) or 0)
        value = float(border.value or 0)
        return False, value if is_least(border.vary) else -value

    return sorted(found, key=rank)


def _cards() -> list[str]:
    """Returns the names of all cards except laptop cards, the smallest card first."""
    cards = [card for card in gpu_profiles() if "Laptop" not in card.name]
    return [card.name for card in sorted(cards, key=lambda card: card.total_bytes)]
