"""Tests the printed plan, a set of changes that make a script fit: text, warnings and pictures."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from plimsoll.base.units import GiB, MiB
from plimsoll.page.page_file import ViewResult
from plimsoll.prediction.fitting.applied_script import with_head
from plimsoll.prediction.fitting.front_picture import front_picture
from plimsoll.prediction.fitting.plan_parts import OtherAllocator, PlannedChange, Tried
from plimsoll.prediction.fitting.plan_text import plan_text, runs_picture, verdict_words
from plimsoll.prediction.fitting.plans import Plan
from plimsoll.prediction.timeline import Timeline
from plimsoll.recordings.analysis.lines import LineShare

FUSED = PlannedChange("use the fused AdamW", ["fused=True"], "", "", "fused AdamW")
PARTS = PlannedChange(
    "run the batch of 8 in 2 parts", [], "", "the loss is taken to be a mean", "batch in 2 parts"
)
LOSSY = PlannedChange("use Adafactor", [], "it is another optimizer", "", "Adafactor")


def tried(size: float, seconds: float | None, *short: str, is_plan: bool = False) -> Tried:
    bytes_ = int(size * GiB)
    return Tried(
        changes=list(short), peak_allocated_bytes=bytes_, device_used_bytes=bytes_,
        least_used_bytes=bytes_, step_seconds=seconds, fits=size <= 6, keeps_results=True,
        is_on_front=True, failure=None, short=list(short), is_plan=is_plan,
    )  # fmt: skip


BASE, ONE, BOTH = tried(9, 0.1), tried(7, 0.12, "one"), tried(5, 0.16, "one", "two", is_plan=True)
WORSE = tried(8, 0.14, "worse")
RUN = Timeline(0, 100, {"activations": [GiB, 4 * GiB]}, [5 * GiB, 5 * GiB], 1, [1])


def plan_of(**values: object) -> Plan:
    """Returns a plan that makes two changes, after which the script fits."""
    known = Plan(
        script="train.py", gpu="T4", within_bytes=6 * GiB, fits=True, plan=[FUSED, PARTS],
        allocator="native", conf="", command="python CHANGED.py --steps 3",
        patch="--- train.py\n+++ train.py, changed\n+x = 1", peak_allocated_bytes=4 * GiB,
        peak_reserved_bytes=5 * GiB, device_used_bytes=5 * GiB, step_seconds=0.16, slowdown=1.6,
        as_it_is_bytes=9 * GiB, device_used_range_bytes=None, gives_cached_back=False,
        host_peak_bytes=2 * GiB, host_peak_range_bytes=(GiB, 3 * GiB), front=[], tried=[],
        floor_bytes=5 * GiB, floor_changes=["fused AdamW"], floor_held={}, floor_lines=[],
        room_bytes=5 * GiB, before=RUN, after=RUN, simulations=7, seconds=30.0,
    )  # fmt: skip
    return replace(known, **values)  # type: ignore[arg-type]


class TestAnswer:
    def test_the_first_line_says_with_what_it_fits_and_at_what_price(self) -> None:
        assert str(plan_of()).splitlines()[:6] == [
            "train.py fits in 6.00 GiB of T4 with fused AdamW and batch in 2 parts. It takes "
            "5.00 GiB, and a step takes 1.60 times as long (about 160 ms)",
            "  use the fused AdamW",
            "  run the batch of 8 in 2 parts (the loss is taken to be a mean)",
            "  unchanged, the script takes 9.00 GiB",
            "  host memory          2.00 GiB  (1.00 GiB to 3.00 GiB), estimated",
            "",
        ]

    def test_it_says_what_limits_it(self) -> None:
        line = "--steps 3 ended no training loop"
        assert line in str(plan_of(caveats=[line])).splitlines()
        assert line in str(plan_of(caveats=[line], fits=False)).splitlines()

    def test_of_many_changes_it_names_the_first_and_how_many_more_there_are(self) -> None:
        many = [replace(FUSED, short=f"a change that is number {number}") for number in range(6)]
        line = str(plan_of(plan=many)).splitlines()[0]
        assert "with a change that is number 0, a change that is number 1 and 4 more. It " in line

    def test_an_unchanged_script_is_told_each_allocator_with_which_it_fits(self) -> None:
        own = OtherAllocator("elastic", "", 4 * GiB, "plimsoll run train.py")
        setting = "expandable_segments:True"
        text = str(plan_of(plan=[], patch="", conf=setting, others=[own], applied="new.py"))
        lines = text.splitlines()
        assert lines[0].startswith(f"train.py fits in 6.00 GiB of T4 unchanged, under {setting}.")
        assert lines[1:3] == [
            "  it also fits under plimsoll's elastic allocator, where it takes 4.00 GiB: "
            "plimsoll run train.py",
            "  as it runs now it does not fit: on a card without a limit it takes 9.00 GiB",
        ]
        assert "new.py has the script unchanged, with this command at its head:" in lines

    def test_it_names_another_allocator(self) -> None:
        elastic = str(plan_of(allocator="elastic")).splitlines()[0]
        assert (
            "and batch in 2 parts, under plimsoll's elastic allocator. It takes 5.00 GiB" in elastic
        )
        native = str(plan_of(plan=[], conf="expandable_segments:True", patch="")).splitlines()[0]
        assert "of T4 unchanged, under expandable_segments:True. It takes 5.00 GiB" in native

    def test_a_script_that_fits_as_it_is(self) -> None:
        lines = str(plan_of(plan=[], patch="", command="python train.py")).splitlines()
        assert lines[0] == (
            "train.py fits in 6.00 GiB of T4 unchanged. It takes 5.00 GiB, and a step takes "
            "about 160 ms"
        )
        assert "Run: python train.py" in lines

    def test_results_that_differ_are_said(self) -> None:
        assert "  use Adafactor (results differ: it is another optimizer)" in str(
            plan_of(plan=[LOSSY])
        )

    def test_the_command_says_how_to_get_its_script_where_none_was_written(self) -> None:
        assert (
            "Run: python CHANGED.py --steps 3\n  (--apply CHANGED.py writes the changed script)"
            in str(plan_of())
        )
        assert "--apply" not in str(plan_of(command="python copy.py --steps 3"))

    def test_the_answer_ends_with_the_whole_command_of_a_script_that_was_written(self) -> None:
        plan = plan_of(applied="copy.py", command="python copy.py --batch-size 8")
        assert str(plan).count(plan.command) == 1
        assert str(plan).split("\n\n")[-2] == (
            "copy.py has the changed script, with this command at its head:\n"
            "  python copy.py --batch-size 8"
        )

    def test_the_command_of_a_module_says_which_file_to_replace(self) -> None:
        plan = plan_of(script="pack.train", applied="copy.py", command="python -m pack.train")
        assert "  (it runs the module pack.train, whose file copy.py replaces)" in str(plan)

    def test_a_script_that_was_written_has_the_command_at_its_head(self) -> None:
        head = (
            "# plimsoll fit made this from train.py, for T4:\n# - use the fused AdamW\n"
            "# - run the batch of 8 in 2 parts\n# Run: python CHANGED.py --steps 3\n"
        )
        assert with_head("x = 1\n", plan_of()) == f"{head}x = 1\n"
        for first in ("#!/usr/bin/env python\n", "# -*- coding: utf-8 -*-\n"):
            assert with_head(f"{first}x = 1\n", plan_of()) == f"{first}{head}x = 1\n"
        assert with_head("", plan_of(command="python 'a\nimport os'")).count("\n") == 4

    def test_a_page_is_named(self) -> None:
        assert "\nPage: out.html: 2 events" in str(
            plan_of(page=ViewResult("out.html", 10, 2, 1, 0, None))
        )

    def test_names_cannot_command_the_terminal(self) -> None:
        assert "\x1b" not in str(plan_of(script="\x1b[2J.py", command="python '\x1b[2J.py'"))


def test_a_table_says_which_allocator_each_figure_is_of() -> None:
    rows = [
        replace(ONE, least_allocator="elastic"),
        replace(BOTH, least_allocator="native", least_conf="expandable_segments:True"),
    ]
    legend = (
        "Column 'takes': PyTorch's allocator. Column 'at least': plimsoll's elastic allocator or "
        "expandable_segments:True."
    )
    assert str(plan_of(front=rows, tried=rows)).splitlines().count(legend) == 1
    alone = [rows[0], replace(rows[1], changes=["two"], short=["two"])]
    assert legend in str(plan_of(tried=alone)).splitlines()


def test_data_have_the_reason_and_what_to_do_next() -> None:
    assert verdict_words(plan_of()) == {
        "why": str(plan_of()).splitlines()[0],
        "next": "python CHANGED.py --steps 3",
    }
    failing = plan_of(fits=False, floor_bytes=7 * GiB)
    words = verdict_words(failing)
    assert words["why"].startswith("the least that it took: 7.00 GiB, 1.00 GiB too much, with")
    assert words["next"].startswith("take a card with 7.00 GiB or more (plimsoll gpus lists them)")
    assert f"Next: {words['next']}" in str(failing).splitlines()


class TestThin:
    def test_nothing_is_said_where_there_is_room(self) -> None:
        assert "thin" not in str(plan_of())
        assert "thin" not in str(plan_of(device_used_range_bytes=(4 * GiB, 6 * GiB)))

    def test_less_than_a_hundredth_to_spare(self) -> None:
        text = str(plan_of(device_used_bytes=6 * GiB - 32 * MiB))
        thin = "  only 32.00 MiB to spare, 0.5% of the limit; --headroom 5% leaves more"
        assert thin in text.splitlines()

    def test_data_that_would_not_fit(self) -> None:
        assert (
            "  may not fit: it takes 4.00 GiB to 7.00 GiB, depending on data that plimsoll did not "
            "compute; 7.00 GiB does not fit\n"
        ) in str(plan_of(device_used_range_bytes=(4 * GiB, 7 * GiB)))

    def test_cached_memory_that_has_to_go_back(self) -> None:
        text = str(plan_of(device_used_bytes=6 * GiB, gives_cached_back=True))
        assert "  fits only because cached memory goes back to the driver, which takes time" in text
        assert "to spare" not in text


def test_what_only_a_replay_says_to_fit_is_not_too_much_by_less_than_nothing() -> None:
    text = str(plan_of(fits=False, interrupted=True, floor_bytes=5 * GiB, within_bytes=6 * GiB))
    assert "the least that it took: 5.00 GiB, which no run under the limit confirmed, with" in text
    assert "too much" not in text


def test_where_nothing_fits_the_floor_is_named_with_its_changes_and_what_holds_it() -> None:
    text = str(
        plan_of(
            fits=False,
            within_bytes=3 * GiB,
            host_peak_bytes=None,
            floor_held={"activations": 3 * GiB, "optimizer_state": GiB, "inputs": 0},
            floor_lines=[LineShare("train.py:7 forward", 2 * GiB, 3)],
        )
    )
    assert text.splitlines()[:4] == [
        "train.py does not fit in 3.00 GiB of T4 with anything that plimsoll tried",
        "  the least that it took: 5.00 GiB, 2.00 GiB too much, with fused AdamW and batch in 2 "
        "parts",
        "  use the fused AdamW",
        "  run the batch of 8 in 2 parts (the loss is taken to be a mean)",
    ]
    assert text.splitlines()[4].startswith("Next: take a card with 5.00 GiB or more")
    assert text.splitlines()[6:11] == [
        "What holds the 5.00 GiB, at the peak:",
        "      3.00 GiB  activations",
        "      1.00 GiB  optimizer state",
        "Lines that hold the most at the peak:",
        "      2.00 GiB  train.py:7 forward",
    ]
    assert "Run:" not in text


def test_an_interrupted_search_says_so() -> None:
    assert "The search was interrupted; there may be better plans." in str(
        plan_of(interrupted=True)
    )
    assert str(plan_of(fits=False, interrupted=True)).splitlines()[0].endswith("was interrupted")


class TestFront:
    FRONT = [BASE, ONE, BOTH]  # noqa: RUF012
    TRIED = [BASE, ONE, WORSE, BOTH]  # noqa: RUF012

    def drawn(self, limit: int = 6 * GiB, width: int = 60) -> list[str]:
        return front_picture(self.FRONT, self.TRIED, limit, width).plain.splitlines()

    def test_letters_are_the_rows_of_the_table(self) -> None:
        lines = str(plan_of(front=self.FRONT, tried=self.TRIED)).splitlines()
        place = lines.index("Memory against time; no other try takes less memory and less time:")
        assert [line.split()[0] for line in lines[place + 2 : place + 5]] == ["a", "b", "c"]
        assert lines[place + 4].endswith("one + two: the plan")

    def test_points_axes_units_and_the_limit_are_drawn(self) -> None:
        assert self.drawn() == [
            "y axis: GiB of the card, x axis: ms per step",
            "  9 ┤a",
            "    │",
            "    │",
            "  8 ┤                                    ·",
            "    │",
            "    │",
            "  7 ┤                 b",
            "    │",
            "    │",
            "  6 ┤╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌",
            "    │",
            "    │                                                     c",
            "GiB └─────────────────┴─────────────────┴─────────────────┴─",
            " ms                 120               140               160",
            "a to c the rows above  · others that were tried",
            "╌╌ the limit: 6.00 GiB",
        ]

    @pytest.mark.parametrize("width", [1, 60, 61, 80, 100, 137, 200, 500])
    def test_no_line_is_wider_than_the_terminal_and_the_area_fills_it(self, width: int) -> None:
        shown = min(max(width, 60), 200)
        assert max(map(len, self.drawn(width=width))) == shown

    def test_a_limit_far_away_is_only_named(self) -> None:
        lines = self.drawn(limit=40 * GiB)
        assert "╌" not in "".join(lines[:-1])
        assert lines[-1].endswith("╌╌ the limit: 40.00 GiB, beyond the picture")

    def test_letters_in_one_place_are_beside_each_other(self) -> None:
        front = [tried(9, 0.1, "x"), tried(9, 0.1, "y"), BOTH]
        lines = front_picture(front, front, 6 * GiB, 60).plain.splitlines()
        assert "ab" in lines[1]

    def test_one_time_for_all_is_drawn(self) -> None:
        same = [tried(9, 0.1), tried(7, 0.1, "one")]
        lines = front_picture(same, same, 6 * GiB, 60).plain.splitlines()
        assert [line[5] for line in lines[1:13] if line[5:6].isalpha()] == ["a", "b"]

    def test_a_search_without_times_has_no_picture(self) -> None:
        assert "y axis" not in str(plan_of(front=[], tried=[tried(9, None), tried(5, None, "x")]))

    def test_no_meaning_is_in_a_colour_alone(self) -> None:
        plan = plan_of(front=self.FRONT, tried=self.TRIED)
        coloured = plan_text(plan, 80)
        assert any(span.style for span in coloured.spans)
        fitting = [line for line in coloured.plain.splitlines() if line.startswith("  c ")]
        assert ": the plan" in fitting[0]


class TestRuns:
    def test_before_and_after_are_one_above_the_other_on_one_scale(self) -> None:
        picture = runs_picture(plan_of(), 80)
        assert picture is not None
        lines = picture.plain.splitlines()
        heads = [line for line in lines if line.startswith("T4, ")]
        assert [head.partition(":")[0] for head in heads] == ["T4, unchanged", "T4, with the plan"]
        assert "the limit: 5.00 GiB" in lines[-1]

    def test_a_script_that_fits_as_it_is_has_one(self) -> None:
        picture = runs_picture(plan_of(plan=[]))
        assert picture is not None
        assert "with the plan" not in picture.plain


def test_plans_are_plain_data() -> None:
    plan = plan_of(front=[BASE], tried=[BASE], page=ViewResult("out.html", 10, 2, 1, 0, None))
    assert json.loads(json.dumps(plan.to_dict()))["front"][0]["short"] == []
