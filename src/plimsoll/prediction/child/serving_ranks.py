"""How a serving engine of several processes divides its cards: what they say, put together."""

from __future__ import annotations

from typing import Any

_OF_REFUSAL = ("refusal", "missing_bytes", "fitting_len")
"""Known to the process that plans the cache, which is no rank where the engine has several."""


def serving_of_all(
    own: dict[str, Any] | None, predictions: list[dict[str, Any]]
) -> dict[str, Any] | None:
    """Return a `ServingUse` of the whole engine; None where none ran.

    Its sizes are those of the process that the report is of. Why the engine failed may be known to
    another one.

    Args:
        own: The `ServingUse` of that process.
        predictions: Those of all processes.
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
    """Return whether an engine ran out of memory, or refused to start for lack of it."""
    return serving is not None and (
        serving["failed_in"] is not None or serving["refusal"] is not None
    )
