"""Judges from the end of an engine's trial whether other values of an option may help."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from plimsoll.prediction.fitting.accepted_steps import without_line
from plimsoll.prediction.serving.varied_options import LENGTH, SEQUENCES, SHARE, TOKENS

if TYPE_CHECKING:
    from plimsoll.prediction.serving.parts import EngineTrial

_AFTER_THE_CACHE = ("kv_cache", "warm_up", "capture", "load")


def lacks_cache(trial: EngineTrial) -> bool:
    """Returns whether the engine refused to start for lack of memory for the KV cache."""
    use = trial.serving
    return use is not None and use.refusal is not None and use.weights_bytes is not None


def card_is_too_full(trial: EngineTrial) -> bool:
    """Returns whether the engine claims more memory than is free, at its start or under load."""
    use = trial.serving
    if use is None or trial.fits:
        return False
    if use.refusal is not None:
        return use.weights_bytes is None
    return (use.failed_in or use.stage) in _AFTER_THE_CACHE


def longest_request(trial: EngineTrial) -> int | None:
    """Returns the longest request that would fit. None if the engine's error does not name it."""
    return trial.serving.fitting_len if lacks_cache(trial) and trial.serving else None


def is_too_little(trial: EngineTrial, vary: str) -> bool:
    """Returns whether the option's value was too small, so that only a larger one may help."""
    return vary == SHARE and lacks_cache(trial)


def why_hopeless(trial: EngineTrial, vary: str) -> str | None:
    """Returns why no other value of the option can help; None if one may help."""
    use = trial.serving
    if use is None or trial.fits is not False:
        return None
    is_after_weights = vary in (LENGTH, SEQUENCES, TOKENS, SHARE)
    if is_after_weights and use.refusal is None and use.weights_bytes is None:
        return f"the engine {trial.ends}, whatever {vary} is"
    if vary == LENGTH and lacks_cache(trial) and longest_request(trial) is None:
        return "the engine has no memory for a KV cache, however short requests are"
    return None


def named_limit(trial: EngineTrial, low: int, high: int) -> int | None:
    """Returns the option's limit, if the engine's error message seems to name it.

    This is the largest number in the message that is at least `low` and less than `high`; None if
    there is no such number.

    Args:
        trial: The trial.
        low: The largest value that serves.
        high: The value with which the engine fails.
    """
    text = without_line(trial.error or "")
    numbers = (int(each) for each in re.findall(r"(?<![\w.])\d{1,9}(?![\w.])", text))
    return max((number for number in numbers if low <= number < high), default=None)


def own_value(trial: EngineTrial, vary: str) -> int | float | None:
    """Returns the value of the option with which the engine ran; None if it is unknown."""
    use = trial.serving
    if use is None:
        return None
    values: dict[str, int | float | None] = {
        LENGTH: use.max_model_len, SEQUENCES: use.max_num_seqs,
        TOKENS: use.max_num_batched_tokens, SHARE: use.utilization,
    }  # fmt: skip
    return values.get(vary)
