"""Finds the repository of Hugging Face's hub that a script failed to get."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from plimsoll.prediction.child.error_chain import errors_behind
from plimsoll.prediction.hub_repository import HubRepository, reason_for, why_missing

if TYPE_CHECKING:
    from collections.abc import Iterator


def missing_repository(error: BaseException | None) -> HubRepository | None:
    """Returns the repository whose absence caused an error; None for any other error.

    The repository's name comes from the local variables of huggingface_hub's functions in the
    error's traceback. This works for every library that loads with huggingface_hub.
    """
    if error is None or isinstance(error, SystemExit) or not sys.modules.get("huggingface_hub"):
        return None
    with suppress(Exception):  # the program may have replaced objects of huggingface_hub
        return _found_behind(error)
    return None


def _found_behind(error: BaseException) -> HubRepository | None:
    errors = errors_behind(error)
    why = next((found for each in errors if (found := why_missing(each)) is not None), None)
    asked = [values for each in errors for values in _hub_variables(each)]
    if why is None or not asked:
        return None
    named = asked[0]
    return HubRepository(
        named["repo_id"],
        named.get("repo_type") or "model",
        why,
        reason_for(errors[-1]),
        next(filter(None, (_text(each, "filename") for each in asked)), None),
        next(filter(None, (_text(each, "revision") for each in asked)), None),
    )


def _hub_variables(error: BaseException) -> Iterator[dict[str, Any]]:
    """Yields the local variables of each huggingface_hub function on the error's stack.

    It begins with the innermost function, and skips functions that have no variable `repo_id`.
    """
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    for frame in reversed(frames):
        if str(frame.f_globals.get("__name__")).split(".")[0] == "huggingface_hub":
            values = frame.f_locals
            if isinstance(values.get("repo_id"), str):
                yield values


def _text(values: dict[str, Any], name: str) -> str | None:
    value = values.get(name)
    return value if isinstance(value, str) and value != "main" else None
