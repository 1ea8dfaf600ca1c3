"""Combines what the processes of a serving engine report about its division of GPU memory."""

from __future__ import annotations

from typing import Any

_OF_REFUSAL = ("refusal", "missing_bytes", "fitting_len")
"""Fields that are reported by one process only: the process that plans the KV cache.

If the engine has several ranks, this process is not one of the ranks.
"""


def serving_of_all(
    own: dict[str, Any] | None, predictions: list[dict[str, Any]]
) -> dict[str, Any] | None:
    """Returns the `ServingUse` of the whole engine, as a dictionary; None if no engine ran.

    The sizes are those of the process that the report describes. The reason for a failure may come
    from another process.

    Args:
        own: The `ServingUse` of the process that the report describes.
        predictions: The predictions of all processes.
    """
    uses = [each["serving"] for each in predictions if each["serving"] is not None]
    if not uses:
        return None
    found = dict(uses[0] if own is None else own)
    for use in uses:
        if use["refusal"] is not None:
            found |= {name: use[name] for name in _OF_REFUSAL}
    stages = [use["failed_in"] for use in uses if use["failed_in"] is not None]
    return {**found, "failed_in": found["failed_in"] or next(iter(stages), None)}


def lacks_memory(serving: dict[str, Any] | None) -> bool:
    """Returns whether an engine ran out of memory, or refused to start for lack of memory."""
    return serving is not None and (
        serving["failed_in"] is not None or serving["refusal"] is not None
    )
