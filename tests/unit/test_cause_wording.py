"""Tests the line that says why memory is used and what a trial of the advice showed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plimsoll.base.units import GiB, MiB
from plimsoll.recordings.causes.cause import Cause, main_cause, other_growth
from plimsoll.recordings.causes.wording import why

CAUSE = Cause("logits", "the logits take 2.00 GiB", "use parts", GiB)


@pytest.mark.parametrize(
    ("cause", "advice"),
    [
        (CAUSE, "What may help (not tried): use parts."),
        (replace(CAUSE, saves_bytes=MiB), "What helps: use parts (saves 1.00 MiB, tried)."),
        (replace(CAUSE, saves_bytes=0), "Tried, and saves nothing: use parts."),
        (replace(CAUSE, why_not="it fails"), "Tried, without success: use parts (it fails)."),
        (
            replace(CAUSE, saves_bytes=MiB, growth_bytes=1),
            "What helps: use parts (saves at least 1.00 MiB, tried).",
        ),
        (
            replace(CAUSE, serves_failed_requests=True),
            "What helps: use parts (serves the request that failed, tried).",
        ),
        (
            replace(CAUSE, serves_failed_requests=False),
            "Tried, and not enough for the request that failed: use parts.",
        ),
    ],
)
def test_the_advice_says_what_its_trial_showed(cause: Cause, advice: str) -> None:
    assert why(cause) == f"Why: the logits take 2.00 GiB. {advice}"


def test_what_holds_or_saves_next_to_nothing_is_not_the_main_cause() -> None:
    grows = replace(CAUSE, name="kept_over_passes", bytes=MiB, growth_bytes=1)
    tried = replace(grows, bytes=GiB, saves_bytes=MiB)
    peak = 2 * GiB
    assert main_cause([grows, CAUSE], peak) is CAUSE
    assert main_cause([tried, CAUSE], peak) is CAUSE
    assert main_cause([grows, tried], peak) is None
    assert other_growth([CAUSE, grows], CAUSE) is grows
    assert other_growth([tried], tried) is None
