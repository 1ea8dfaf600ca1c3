"""Tests the answer about a script that fits only with another allocator or setting."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from plimsoll.base.units import GiB, MiB
from plimsoll.prediction.allocator_need import AllocatorNeed
from plimsoll.prediction.child.allocator_needs import of_all
from plimsoll.prediction.parts import CardVerdict
from plimsoll.prediction.results import Prediction
from plimsoll.prediction.text import headline
from plimsoll.recordings.causes.cause import Cause
from plimsoll.recordings.causes.fragments import Pieces, Way, with_fragments
from tests.unit.tiny_script import CONTEXT, prediction

EXPANDABLE = "expandable_segments:True"
LOGITS = Cause("logits", "logits take memory", "compute the loss in parts", GiB)
VARIED = Cause(
    "varied_sizes", "much is reserved: sizes at a.py:3 vary, from 1 to 9", "", GiB, "a.py:3"
)


def failing(*needs: AllocatorNeed) -> Prediction:
    """Returns the prediction of a script on a card with 6 GiB besides the context."""
    found = prediction(4 * GiB, 12 * GiB, room=6 * GiB, seconds=None)
    if not needs:
        return found
    return replace(found, needs=[*needs], headroom_bytes=found.total_bytes - needs[0].card_bytes)


def need(conf: str, size: int, *, fits: bool, allocator: str = "native") -> AllocatorNeed:
    return AllocatorNeed(allocator, conf, fits, size + CONTEXT)


def test_the_first_line_has_the_need_of_a_limited_card_and_what_makes_the_script_fit() -> None:
    found = failing(need("", 7 * GiB, fits=False), need(EXPANDABLE, 5 * GiB, fits=True))
    line = headline(found)
    assert ": 1.00 GiB too little; with PYTORCH_CUDA_ALLOC_CONF=" in line
    assert line.endswith(f"{EXPANDABLE} it fits")
    text = str(found)
    assert "peak reserved       12.00 GiB, if the card had no limit" in text
    assert "would need           7.50 GiB; the card has 6.50 GiB" in text


def test_a_need_that_only_an_endless_card_has_shown_is_called_a_bound() -> None:
    assert headline(failing()).endswith(": up to 6.00 GiB too little")
    assert "would need          12.50 GiB, at most; the card has 6.50 GiB" in str(failing())


def test_the_need_is_in_the_json() -> None:
    found = failing(
        need("", 7 * GiB, fits=False), need("", 5 * GiB, fits=True, allocator="elastic")
    )
    values = json.loads(json.dumps(found.to_dict()))
    assert values["needed_bytes"] == 7 * GiB + CONTEXT
    assert values["needs"][1]["allocator"] == "elastic"
    assert Prediction.from_dict(values) == found
    assert prediction(GiB, GiB, room=2 * GiB, seconds=None).needed_bytes is None


CARDS = [
    CardVerdict("roomy", 40 * GiB, fits=True, headroom_bytes=0),
    CardVerdict("doubtful", 30 * GiB, fits=True, headroom_bytes=0, may_not_fit=True),
    CardVerdict("tight", 20 * GiB, fits=True, headroom_bytes=-MiB),
    CardVerdict("small", 8 * GiB, fits=False, headroom_bytes=-2 * MiB),
]


def test_other_cards_take_one_line_if_the_script_does_not_fit_and_none_if_it_does() -> None:
    lines = str(replace(failing(), other_cards=CARDS)).splitlines()
    (line,) = [line for line in lines if "roomy" in line]
    assert line.startswith("It should fit on tight*, doubtful?, roomy (* only because cached")
    assert "small" not in line
    read = replace(failing(), no_other_cards="the program reads how much memory its card has")
    assert "card has. To try them: plimsoll predict --gpu NAME" in str(read)
    fits = replace(prediction(GiB, GiB, room=2 * GiB, seconds=None), other_cards=CARDS)
    assert "roomy" not in str(fits)


def pieces(*ways: Way, live: int = 5) -> Pieces:
    return Pieces(6 * GiB, live * GiB, 8 * GiB, ways)


SETTING = Way(f"PYTORCH_CUDA_ALLOC_CONF={EXPANDABLE}", f"C={EXPANDABLE}", 5 * GiB, fits=True)
RUN = Way("`plimsoll run`", "", 5 * GiB, fits=True)
BEYOND = replace(SETTING, fits=False, bytes=7 * GiB)


def test_fragments_come_first_if_a_setting_makes_the_script_fit() -> None:
    cause, logits = with_fragments([LOGITS, VARIED], pieces(SETTING, RUN))
    assert (cause.name, logits) == ("fragments", LOGITS)
    assert cause.sentence.endswith("do not fit, as sizes at a.py:3 vary, from 1 to 9")
    assert "5.00 GiB of 6.00 GiB" in cause.sentence
    assert cause.patch == f"C={EXPANDABLE}"
    assert cause.serves_failed_requests is True
    assert cause.saves_bytes == 3 * GiB


def test_a_setting_that_does_not_help_is_told_after_what_the_script_could_change() -> None:
    logits, cause = with_fragments([LOGITS], pieces(BEYOND))
    assert (logits, cause.serves_failed_requests, cause.patch) == (LOGITS, False, "")
    assert cause.change.endswith("which needs 7.00 GiB")


def test_only_the_allocator_that_helps_is_advised() -> None:
    cause, _ = with_fragments([LOGITS], pieces(BEYOND, RUN))
    assert cause.change == "`plimsoll run`, which takes 5.00 GiB"


def test_fragments_come_first_unless_memory_grows_much() -> None:
    slow = Cause("kept_over_passes", "a loop keeps more", "keep numbers", MiB, growth_bytes=1024)
    fast = replace(slow, bytes=GiB)
    assert with_fragments([slow], pieces(SETTING))[0].name == "fragments"
    assert with_fragments([fast], pieces(SETTING))[0] == fast


def test_live_blocks_that_exceed_the_card_are_no_fragments() -> None:
    assert with_fragments([VARIED], pieces(live=7)) == [VARIED]


@pytest.mark.parametrize(
    ("cards", "together"),
    [
        ([], []),
        ([[need("", GiB, fits=True)], []], []),
        ([[need("", GiB, fits=True)], [need("a", GiB, fits=True)]], []),
        (
            [[need("", GiB, fits=True)], [need("", 3 * GiB, fits=False)]],
            [need("", 3 * GiB, fits=False)],
        ),
        (
            [
                [need("", GiB, fits=True)],
                [need("", 3 * GiB, fits=False), need(EXPANDABLE, 2 * GiB, fits=True)],
            ],
            [need("", 3 * GiB, fits=False), need(EXPANDABLE, 2 * GiB, fits=True)],
        ),
        (
            [
                [need("", 4 * GiB, fits=False)],
                [need("", 3 * GiB, fits=False), need(EXPANDABLE, 2 * GiB, fits=True)],
            ],
            [need("", 4 * GiB, fits=False)],
        ),
    ],
)
def test_several_cards_need_what_the_fullest_needs(
    cards: list[list[AllocatorNeed]], together: list[AllocatorNeed]
) -> None:
    assert of_all(cards) == together
