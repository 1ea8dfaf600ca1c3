"""Tests pictures of memory over a run: exact text for small runs, invariants at every width."""

from __future__ import annotations

import pytest

from plimsoll.base.layout import NARROWEST, WIDEST
from plimsoll.base.units import GiB, KiB, MiB
from plimsoll.prediction.plot import Picture, plot
from plimsoll.prediction.timeline import Timeline


def timeline(
    by_category: dict[str, list[int]],
    reserved: list[int],
    step_ends: list[int] | None = None,
    first_step: int = 1,
    first_event: int = 0,
) -> Timeline:
    return Timeline(
        first_event, first_event + 1000, by_category, reserved, first_step, step_ends or []
    )


SMALL = timeline(
    {"parameters": [4 * GiB] * 4, "activations": [0, 6 * GiB, 6 * GiB, 0]},
    [6 * GiB, 11 * GiB, 11 * GiB, 11 * GiB],
    [2, 3],
)


def drawn(*pictures: Picture, width: int = 60) -> list[str]:
    return plot(pictures, width).plain.splitlines()


def test_areas_lines_axes_and_steps_are_drawn() -> None:
    assert drawn(Picture("H100", SMALL, 12 * GiB)) == [
        "H100: memory over 1,000 events",
        " 12 ┤╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌",
        "    │              ─────────────────────────────────────────",
        "    │              ░░░░░░░░░░░░░░░░░░░░░░░░░░░░",
        "  9 ┤              ░░░░░░░░░░░░░░░░░░░░░░░░░░░░",
        "    │              ░░░░░░░░░░░░░░░░░░░░░░░░░░░░",
        "    │              ░░░░░░░░░░░░░░░░░░░░░░░░░░░░",
        "  6 ┤──────────────░░░░░░░░░░░░░░░░░░░░░░░░░░░░",
        "    │              ░░░░░░░░░░░░░░░░░░░░░░░░░░░░",
        "    │███████████████████████████████████████████████████████",
        "  3 ┤███████████████████████████████████████████████████████",
        "    │███████████████████████████████████████████████████████",
        "    │███████████████████████████████████████████████████████",
        "GiB └─────────────────────────────────────────┴────────────┴",
        "                                         step 1       step 2",
        "██ parameters  ░░ activations  ── reserved",
        "╌╌ the card: 12.00 GiB",
    ]


@pytest.mark.parametrize("width", [1, 59, 60, 61, 80, 100, 137, 200, 201, 500])
def test_no_line_is_wider_than_the_terminal_and_the_area_fills_it(width: int) -> None:
    lines = drawn(Picture("a name that is too long " * 20, SMALL, 12 * GiB), width=width)
    shown = min(max(width, NARROWEST), WIDEST)
    assert max(map(len, lines)) == shown
    assert len(lines[13]) == shown
    assert lines[0].endswith("…")


def test_runs_are_drawn_one_above_the_other_on_one_scale() -> None:
    after = timeline({"parameters": [3 * GiB] * 4}, [3 * GiB] * 4)
    lines = drawn(Picture("before", SMALL, 12 * GiB), Picture("after", after, 12 * GiB))
    heads = [i for i, line in enumerate(lines) if line.startswith(("before", "after"))]
    assert [line[:4] for line in lines[heads[0] + 1 : heads[0] + 13]] == [
        line[:4] for line in lines[heads[1] + 1 : heads[1] + 13]
    ]
    assert sum(line.count("█") for line in lines[heads[1] + 1 : heads[1] + 13]) == 3 * 55
    assert "".join(lines).count("reserved") == 1


def test_a_limit_far_above_is_left_out() -> None:
    lines = drawn(Picture("H100", SMALL, 80 * GiB))
    assert "╌" not in "".join(lines)
    assert lines[1].startswith(" 12 ┤")


def test_a_limit_that_was_passed_shows_across_the_areas() -> None:
    (row,) = [line for line in drawn(Picture("T4", SMALL, 3 * GiB)) if line.startswith("  3 ┤")]
    assert row == "  3 ┤" + 55 * "╌"


@pytest.mark.parametrize(
    ("most", "unit", "label"),
    [
        (20 * KiB, "KiB", "20"), (900 * KiB, "KiB", "1000"), (2 * MiB, "MiB", "2.0"),
        (1000 * MiB, "MiB", "1000"), (GiB, "GiB", "1.00"), (7 * GiB, "GiB", "8"),
        (79 * GiB, "GiB", "80"), (1, "KiB", "0.00100"),
    ],
)  # fmt: skip
def test_labels_are_round_numbers_of_a_fitting_unit(most: int, unit: str, label: str) -> None:
    lines = drawn(Picture("a", timeline({"inputs": [most]}, [most]), 1 << 50))
    assert lines[1].split()[0] == label
    assert lines[13].split()[0] == unit
    assert lines[12].count("▌") > 0


def test_what_is_drawn_is_in_the_legend_and_nothing_else() -> None:
    lines = drawn(Picture("a", timeline({"inputs": [GiB], "workspaces": [1]}, [GiB]), 1 << 50))
    assert lines[-1] == "▌▌ inputs  ── reserved"


def test_a_peak_of_one_point_is_seen_at_every_width() -> None:
    spike = [GiB] * 240
    spike[100] = 8 * GiB
    for width in (60, 100, 200):
        assert (
            "█"
            in drawn(Picture("a", timeline({"parameters": spike}, spike), 1 << 50), width=width)[1]
        )


def test_steps_have_their_numbers_where_there_is_room() -> None:
    many = timeline({"inputs": [GiB] * 24}, [GiB] * 24, list(range(0, 24, 3)))
    assert drawn(Picture("a", many, 1 << 50))[13:15] == [
        " GiB └──┴─────┴──────┴──────┴──────┴─────┴──────┴──────┴────",
        "        1     2 step 3 step 4 step 5     6 step 7 step 8",
    ]


def test_a_part_of_a_run_says_which_steps_it_is_of() -> None:
    part = timeline({"inputs": [GiB] * 24}, [GiB] * 24, [7, 15, 23], first_step=41, first_event=9)
    lines = drawn(Picture("a", part, 1 << 50))
    assert lines[0] == "a: memory over steps 41 to 43, 1,000 events"
    assert lines[13:15] == [
        " GiB └─────────────────┴─────────────────┴─────────────────┴",
        "                 step 41           step 42           step 43",
    ]


def test_names_cannot_command_the_terminal() -> None:
    assert "\x1b" not in plot([Picture("\x1b[2J", SMALL, GiB)]).plain
