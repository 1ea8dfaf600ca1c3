"""Tests lines and tables of a given width."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.base.layout import Verbatim, folded, paragraphs, table

WORDS = st.lists(st.text("abc./_", min_size=1, max_size=30), min_size=1).map(" ".join)


@given(line=WORDS, indent=st.integers(0, 8), width=st.integers(20, 80))
def test_a_folded_line_keeps_its_words_and_its_width(line: str, indent: int, width: int) -> None:
    lines = folded(" " * indent + line, width)
    assert " ".join(lines).split() == line.split()
    for one in lines:
        assert len(one) <= width or len(one.split()) == 1


def test_words_go_on_below_the_words() -> None:
    assert folded("    2.00 GiB   52.1%  train.py:51 forward (4 blocks)", 44) == [
        "    2.00 GiB   52.1%  train.py:51 forward (4",
        "                      blocks)",
    ]
    assert folded("  b      3.79 GiB      3.35 GiB       510 ms  the plan: fused AdamW", 60) == [
        "  b      3.79 GiB      3.35 GiB       510 ms  the plan:",
        "                              fused AdamW",  # indented by at most half of the width
    ]
    assert folded("  2. turn on expandable_segments: saves", 30) == [
        "  2. turn on",
        "     expandable_segments:",
        "     saves",
    ]
    assert folded("  It is so, and goes on", 14) == ["  It is so,", "    and goes", "    on"]


def test_what_is_copied_stays_in_one_piece() -> None:
    command = Verbatim("  plimsoll run --allocator elastic train.py")
    assert paragraphs([["Run this:", command]], 20) == f"Run this:\n{command}"
    assert folded("as long as it is", None) == ["as long as it is"]


def test_paragraphs_have_an_empty_line_between_them_and_command_no_terminal() -> None:
    assert paragraphs([["a", "b\x1b"], [], ["c"]]) == "a\nb\\x1b\n\nc"


ROWS = [
    ("configuration", "allocated", "reserved", "time"),
    ("expandable_segments:True", "8.10 GiB", "8.92 GiB", "19.6 ms"),
    ("default", "8.11 GiB", "9.52 GiB", "5.1 ms"),
]


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (
            None,
            [
                "configuration             allocated  reserved     time",
                "expandable_segments:True   8.10 GiB  8.92 GiB  19.6 ms",
                "default                    8.11 GiB  9.52 GiB   5.1 ms",
            ],
        ),
        (
            46,
            [
                "configuration             allocated  reserved",
                "expandable_segments:True   8.10 GiB  8.92 GiB",
                "default                    8.11 GiB  9.52 GiB",
            ],
        ),
        (
            30,
            [
                "configuration         reserved",
                "expandable_segments:  8.92 GiB",
                "True",
                "default               9.52 GiB",
            ],
        ),
    ],
)
def test_a_narrow_table_goes_without_columns_and_then_folds_names(
    width: int | None, expected: list[str]
) -> None:
    lines = table(ROWS, width=width, names=("configuration",), optional=("time", "allocated"))
    assert list(lines) == expected


@given(
    st.lists(st.tuples(WORDS, st.text("0123456789", max_size=9)), min_size=1),
    st.integers(30, 80),
)
def test_no_table_is_wider_than_its_room(rows: list[tuple[str, str]], width: int) -> None:
    lines = list(table([("name", "size"), *rows], width=width, names=("name",)))
    assert all(len(line) <= width for line in lines)
