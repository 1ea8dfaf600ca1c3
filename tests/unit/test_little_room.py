"""Tests that a verdict warns if little memory is left.

A verdict also warns if the CUDA context or the peak may take more memory than is left.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from plimsoll.base.units import GiB, MiB
from plimsoll.cli.predict import _answer, _table
from plimsoll.engine.gpus.profiles import gpu_profile
from plimsoll.prediction.assumed import FREE_LATER, WORKSPACES, Assumed
from plimsoll.prediction.caveats import caveats_of_fit
from plimsoll.prediction.parts import INTERRUPTED, CardVerdict, Stopped
from plimsoll.prediction.ranges import with_doubtful_cards
from plimsoll.prediction.rank_use import SharedCard
from plimsoll.prediction.results import Prediction
from plimsoll.prediction.text import headline, short_text, verdict_words
from plimsoll.recordings.causes.cause import Cause
from tests.unit.test_fit import CARD, prediction


def leaving(left: int, *, most_context: int | None = None) -> Prediction:
    """Returns the prediction of a script that leaves `left` bytes of the card free."""
    found = prediction(CARD.total_bytes - CARD.context_bytes - left)
    exact = CARD.total_bytes - found.device_used_bytes
    return replace(found, headroom_bytes=exact, context_most_bytes=most_context)


def caveats(found: Prediction) -> list[str]:
    said = verdict_words(found, [])["caveats"]
    assert isinstance(said, list)
    return said


def test_a_measured_context_leaves_no_doubt_and_an_estimated_one_may_be_larger() -> None:
    assert gpu_profile("H100").most_context_bytes(500 * MiB) is None
    assert gpu_profile("RTX 4090").most_context_bytes(500 * MiB) == 775 * MiB
    measured = gpu_profile("H100")
    estimate = (100 + 3 * measured.multiprocessors) * MiB
    assert measured.context_bytes <= (gpu_profile("A100").most_context_bytes(estimate) or 0)


def test_the_first_line_says_that_little_is_left() -> None:
    found = leaving(35 * MiB)
    assert headline(found).startswith("script.py fits on T4: only 3")
    assert headline(found).endswith(" MiB to spare, 0.2% of the card")
    (said,) = caveats(found)
    assert said.startswith("It has only 3")
    assert short_text(found).count("only") == 1


def test_the_verdict_is_may_not_fit_if_the_context_may_take_more_than_is_left() -> None:
    most = CARD.context_bytes + 50 * MiB
    found = leaving(35 * MiB, most_context=most)
    assert headline(found).startswith("script.py may not fit on T4: only 3")
    assert headline(found).endswith(
        "and the CUDA context, estimated at 220.00 MiB, may take 50.00 MiB more"
    )
    (said,) = caveats(found)
    assert said.startswith("It may not fit: only 3")
    assert [each.startswith("It may not fit: the CUDA") for each in caveats_of_fit(found)] == [True]


def with_range(found: Prediction, more: int, what: str = WORKSPACES[0]) -> Prediction:
    """Returns the prediction with a peak that may be larger by `more` bytes."""
    reserved = found.peak_reserved_bytes
    return replace(
        found,
        peak_reserved_range_bytes=(reserved, reserved + more),
        assumptions=[Assumed(what, "aten::cudnn_convolution", None, 1)],
    )


def test_the_verdict_is_may_not_fit_if_the_range_of_the_peak_ends_above_the_card() -> None:
    found = with_range(leaving(GiB), 2 * GiB)
    assert headline(found).startswith("script.py may not fit on T4: 1023.69 MiB to spare, and ")
    assert headline(found).endswith("it may take 2.00 GiB more, depending on cuDNN's workspaces")
    assert caveats(found)[0].startswith("It may not fit: 1023.69 MiB to spare")
    assert next(caveats_of_fit(found)).startswith("It may not fit: it may take 2.00 GiB more")
    assert verdict_words(found, [])["may_not_fit"] is True
    assert found.fits
    wide = with_range(leaving(3 * GiB), 2 * GiB)
    assert " fits on T4: " in headline(wide)
    assert verdict_words(wide, [])["may_not_fit"] is False


def test_memory_that_is_only_cached_longer_leaves_no_doubt() -> None:
    assert " fits on T4: " in headline(with_range(leaving(GiB), 2 * GiB, FREE_LATER))


def test_only_nccls_part_of_a_range_leaves_doubt_if_the_rest_is_cached_longer() -> None:
    found = replace(with_range(leaving(GiB), 2 * GiB, FREE_LATER), nccl_range_bytes=(0, MiB))
    assert " fits on T4: " in headline(found)
    found = replace(found, nccl_range_bytes=(0, 2 * GiB))
    assert headline(found).endswith("it may take 2.00 GiB more")


def test_a_list_of_cards_names_those_that_the_largest_peak_exceeds() -> None:
    cards = [
        CardVerdict("L4", 22 * GiB, fits=True, headroom_bytes=3 * GiB),
        CardVerdict("A2", 15 * GiB, fits=True, headroom_bytes=GiB),
        CardVerdict("A16", 14 * GiB, fits=False, headroom_bytes=-GiB),
    ]
    found = replace(with_range(leaving(5 * GiB), 2 * GiB), other_cards=cards)
    assert [each.may_not_fit for each in with_doubtful_cards(found).other_cards] == [0, 1, 0]


def test_several_cards_are_told_apart_by_the_same_rule() -> None:
    sure = with_range(leaving(3 * GiB), 2 * GiB)
    doubtful = replace(with_range(leaving(GiB), 2 * GiB), gpu="A2")
    first, *rest = _answer([sure, doubtful])
    assert first == "script.py fits on T4; it may not fit on A2"
    assert rest[0].startswith("A2: It may not fit: ")
    assert [row.split()[-1] for row in _table([sure, doubtful], None)][1:3] == ["yes", "not"]


def test_advice_on_host_memory_is_no_answer_for_the_card() -> None:
    advice = Cause("page_locked", "it is rounded", "pin less", GiB, patch="CONF=1", on_host=True)
    found = replace(leaving(35 * MiB), causes=[advice], host_peak_bytes=GiB)
    assert "it is rounded" not in short_text(found)
    assert "CONF=1" not in short_text(found)
    assert verdict_words(found, ["next"])["next"] == "next"
    lines = str(found).splitlines()
    at = next(at for at, line in enumerate(lines) if "host memory" in line)
    assert lines[at + 1].strip().startswith("it is rounded. What may help (not tried): pin less")
    assert lines[at + 2].strip() == "Try: CONF=1"


def test_each_process_on_a_card_has_a_context() -> None:
    found = leaving(90 * MiB, most_context=CARD.context_bytes + 50 * MiB)
    assert " fits on T4: only 89.69 MiB" in headline(found)
    shared = replace(found, shared_cards=[SharedCard(0, 0, [], 2, found.device_used_bytes, 0)])
    assert "may not fit on T4" in headline(shared)
    assert "the CUDA contexts of 2 processes" in headline(shared)


@pytest.mark.parametrize(
    "found",
    [
        leaving(2 * GiB, most_context=CARD.context_bytes + 50 * MiB),
        replace(leaving(2 * GiB), limit_bytes=8 * GiB, headroom_bytes=100 * MiB),
    ],
)
def test_enough_room_is_neither_thin_nor_in_doubt(found: Prediction) -> None:
    assert " fits on T4: " in headline(found)
    assert "only" not in headline(found)
    assert verdict_words(found, [])["caveats"] == []


def test_what_is_left_below_the_scripts_own_limit_is_a_share_of_that_limit() -> None:
    found = replace(leaving(2 * GiB), limit_bytes=8 * GiB, headroom_bytes=50 * MiB)
    assert headline(found).endswith("only 50.00 MiB to spare, 0.6% of the script's limit")


def test_a_script_that_does_not_fit_lacks_memory_and_has_no_such_caveat() -> None:
    found = replace(leaving(-35 * MiB, most_context=GiB), fits=False)
    assert "does not fit on T4: " in headline(found)
    assert "context" not in headline(found)
    assert list(caveats_of_fit(found)) == []


def test_an_answer_before_the_first_step_says_so() -> None:
    early = replace(leaving(GiB), stopped=Stopped(INTERRUPTED, "train.py:3 main", 1, 2))
    assert headline(early).endswith("to spare, and no step of an optimizer has ended yet")
    late = replace(early, step_peaks_bytes=[GiB])
    assert "no step" not in headline(late)
    bounded = replace(early, stopped=Stopped("--at-most-events", "train.py:3 main", 1, 2))
    assert "no step" not in headline(bounded)
