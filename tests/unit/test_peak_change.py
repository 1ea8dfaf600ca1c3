"""Tests the comment that plimsoll writes on a pull request.

The comment begins with the answer, and Markdown in a script's error message is escaped.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from plimsoll.base.units import GiB, MiB
from plimsoll.integrations.peak_change import PeakChange, markdown
from plimsoll.prediction.fitting.headroom import Headroom
from plimsoll.prediction.results import Prediction
from plimsoll.recordings.analysis.lines import LineShare
from tests.unit.tiny_script import CONTEXT, prediction

ROOM = 10 * GiB


def needs(reserved: int, **held: int) -> Prediction:
    """Returns the prediction of a script whose functions hold the given bytes."""
    lines = [
        LineShare(f"model.py:{n} {name}", size, 1) for n, (name, size) in enumerate(held.items())
    ]
    found = prediction(reserved, reserved, room=ROOM, seconds=None)
    return replace(found, by_category={"activations": reserved}, top_lines=lines)


def change(before: Prediction | str, after: Prediction | str) -> PeakChange:
    return PeakChange("train.py --batch-size 8", before, after)


def test_the_answer_is_the_largest_change() -> None:
    less = replace(change(needs(4 * GiB), needs(GiB)), command="eval.py")
    text = markdown([change(needs(2 * GiB), needs(3 * GiB)), less], "T4")
    assert text.splitlines()[0] == "### GPU memory: -3.00 GiB at the peak of `eval.py`"
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    before, after = (CONTEXT + size for size in (2 * GiB, 3 * GiB))
    assert rows[0] == (
        f"| `train.py --batch-size 8` | {before / GiB:.2f} GiB | {after / GiB:.2f} GiB | "
        f"+1.00 GiB (+{100 * GiB / before:.1f}%) | fits, 7.00 GiB to spare |"
    )
    assert "| -3.00 GiB (" in rows[1]


def test_what_holds_more_is_told_by_function_though_lines_move() -> None:
    was = needs(2 * GiB, forward=GiB, loss=512 * MiB)
    now = needs(3 * GiB, added=GiB, forward=GiB, loss=256 * MiB)
    text = markdown([change(was, now)], "T4")
    assert "| activations | 2.00 GiB | 3.00 GiB | +1.00 GiB |" in text
    assert "| model.py added | 0 bytes | 1.00 GiB | +1.00 GiB |" in text
    assert "| model.py loss | 512.00 MiB | 256.00 MiB | -256.00 MiB |" in text
    assert "model.py forward" not in text


def test_where_nothing_changes_there_is_no_more_to_say() -> None:
    same = markdown([change(needs(GiB), needs(GiB))], "T4")
    assert same.splitlines()[0] == "### GPU memory: nothing changes"
    assert "<details>" not in same
    assert "| ±0 (+0.0%) |" in same


def test_scripts_that_are_new_or_fail_say_so() -> None:
    new = change("train.py: no such file", needs(GiB))
    assert "before: train.py: no such file" in markdown([new], "T4")
    assert "| ? |" in markdown([new], "T4")
    fails = change(needs(GiB), "train.py ended with status 1: ValueError: <b>odd</b> | [x](y)")
    text = markdown([fails], "T4")
    assert text.splitlines()[0] == "### GPU memory: `train.py --batch-size 8` fails"
    assert "&#60;b&#62;odd" in text
    (row,) = [line for line in text.splitlines() if line.startswith("| `")]
    assert row.count("|") == 6


def test_a_script_without_cuda_takes_nothing() -> None:
    text = markdown([change(needs(GiB), replace(needs(0), uses_cuda=False))], "T4")
    assert "uses no GPU" in text
    assert f"-{(GiB + CONTEXT) / GiB:.2f} GiB" in text


@pytest.mark.parametrize(
    ("before", "after", "allowed", "worse"),
    [
        (GiB, 2 * GiB, None, False),
        (GiB, GiB + 10 * MiB, "5%", False),
        (GiB, GiB + 100 * MiB, "5%", True),
        (GiB, GiB + 100 * MiB, "100MiB", False),
        (GiB, GiB + 101 * MiB, "100MiB", True),
        (2 * GiB, GiB, "1%", False),
        (GiB, ROOM + MiB, None, True),
        (ROOM + MiB, ROOM + 2 * MiB, None, False),
    ],
)
def test_worse_is_what_does_not_fit_any_more_or_grows_by_more_than_is_allowed(
    before: int, after: int, allowed: str | None, worse: bool
) -> None:
    found = change(needs(before), needs(after))
    assert found.is_worse(None if allowed is None else Headroom.parse(allowed)) is worse


def test_a_script_that_fails_is_not_worse_but_fails() -> None:
    for before, after, fails_now in (
        (needs(GiB), "it fails", True),
        ("it fails", needs(GiB), False),
        ("it fails", "it fails", False),
        (needs(GiB), needs(GiB), False),
    ):
        assert change(before, after).fails_now is fails_now
        assert not change(before, after).is_worse(None)
