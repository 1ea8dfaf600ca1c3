"""Reads rows of serving engines: how the engine divided the card, and how its run ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.prediction.serving_text import serving_failure
from plimsoll.torch.simulated.serving_use import ServingUse

if TYPE_CHECKING:
    from plimsoll.prediction.sweeps.parts import Row

SERVES = "serves"


def serving_of(row: Row) -> ServingUse | None:
    """Returns how the engine divided the card; None if the row does not tell."""
    account = row.result.get("serving") if isinstance(row.result, dict) else None
    return None if account is None else ServingUse.from_dict(account)


def ends_of(row: Row) -> str | None:
    """Returns how the engine's run ended, as words that begin with a verb.

    Returns None if the row's case runs no serving engine.
    """
    if not row.case.is_serving:
        return None
    if row.error is not None:
        return "fails"
    use = serving_of(row)
    if use is None:
        return "ends without the start of an engine"
    ran_out = row.result["out_of_memory"] is not None
    return serving_failure(use, ran_out=ran_out) or SERVES
