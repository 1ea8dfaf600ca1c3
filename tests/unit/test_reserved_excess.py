"""Tests how much reserved memory is beyond the program's need, and which sizes explain that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from plimsoll.base.units import GiB, MiB
from plimsoll.recordings.analysis.block_history import find_lifetimes
from plimsoll.recordings.analysis.steps import Steps
from plimsoll.recordings.causes.cause import Facts, Notes, Reserved
from plimsoll.recordings.causes.reserved_peak import reserved_peak
from plimsoll.recordings.causes.varied_sizes import varied_sizes
from plimsoll.recordings.causes.wording import why
from plimsoll.recordings.events import Action, Frame
from tests.unit.test_analysis_steps import Program

CALL: list[Frame] = [("train.py", 9, "main")]


class Reserving(Program):
    """A history in which some requests need a new segment of their size."""

    def malloc(self, size: int, stack: int = 1, *, reserves: bool = False) -> int:
        if reserves:
            self.events.append((Action.SEGMENT_ALLOC, 1 << 40, size, 0))
        return super().malloc(size, stack)

    def reserved(self) -> Reserved:
        trace = self.trace()
        blocks = find_lifetimes(trace)
        events = trace.load()
        return reserved_peak(events.action, events.size, events.stream, blocks, blocks.size)

    def facts(self, boundaries: list[int]) -> Facts:
        blocks = self.lifetimes()
        return Facts(
            device=0,
            blocks=blocks,
            category=np.zeros(len(blocks), dtype=np.uint8),
            line=np.zeros(len(blocks), dtype=np.int64),
            lines=["train.py:9 main"],
            frames=lambda _: CALL,
            steps=Steps(np.array(boundaries, dtype=np.int64), "marks", 1.0),
            event=int(blocks.level().argmax()),
            reserved=self.reserved(),
            notes=Notes(),
        )


def test_a_small_segment_at_the_end_does_not_make_all_that_is_cached_an_excess() -> None:
    program = Reserving()
    program.free(program.malloc(100 * MiB, reserves=True))
    program.malloc(2 * MiB, reserves=True)
    assert program.reserved() == Reserved(102 * MiB, 2 * MiB)


def test_the_request_that_reserves_the_last_segment_is_in_use() -> None:
    program = Reserving()
    program.malloc(100 * MiB, reserves=True)
    program.malloc(30 * MiB, reserves=True)
    assert program.reserved() == Reserved(130 * MiB, 0)


def test_sizes_that_outgrow_what_is_cached_are_named() -> None:
    program = Reserving()
    boundaries = []
    for size in (100, 104, 108):
        program.free(program.malloc(size * MiB, reserves=True))
        boundaries.append(len(program.events))
    cause = varied_sizes(program.facts(boundaries))
    assert cause is not None
    assert cause.bytes == 204 * MiB
    assert "sizes at train.py:9 grow, from 100.00 MiB to 108.00 MiB" in cause.sentence


@pytest.mark.parametrize(
    ("room", "failed", "advises"),
    [
        (24 * GiB, False, False),
        (24 * GiB, True, True),  # the program has a limit of its own
        (2 * GiB, False, True),
        (None, False, True),
    ],
)
def test_settings_are_advised_unless_most_of_the_card_is_unused(
    room: int | None, failed: bool, advises: bool
) -> None:
    program = Reserving()
    boundaries = []
    for size in (100, 104, 108):
        program.free(program.malloc(size * MiB, reserves=True))
        boundaries.append(len(program.events))
    facts = replace(program.facts(boundaries), room_bytes=room, failed=failed)
    cause = varied_sizes(facts)
    assert cause is not None
    assert (cause.change != "", cause.patch != "") == (advises, advises)
    assert ("expandable_segments" in why(cause)) == advises


def test_equal_sizes_explain_no_excess() -> None:
    program = Reserving()
    boundaries = []
    for _ in range(3):
        program.free(program.malloc(100 * MiB, reserves=True))
        boundaries.append(len(program.events))
    assert varied_sizes(program.facts(boundaries)) is None
