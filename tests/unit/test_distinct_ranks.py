"""Tests which ranks of a large job plimsoll runs, and which other ranks each of them represents."""

from __future__ import annotations

import pytest

from plimsoll import InputError
from plimsoll.prediction.distinct import choose_roles
from plimsoll.prediction.job_shape import DISTINCT, JobShape
from plimsoll.torch.simulated.ranks.pretended import letter_of, stand_in

STAGES, PARTS = 4, 6  # pipeline stages, and ranks in each stage
WORLD = STAGES * PARTS
PIPELINES = [[part + stage * PARTS for stage in range(STAGES)] for part in range(PARTS)]
SHARDS = [list(range(stage * PARTS, (stage + 1) * PARTS)) for stage in range(STAGES)]


def test_a_pipeline_has_its_ends_and_what_is_between_run() -> None:
    found = choose_roles(WORLD, SHARDS + PIPELINES, [PIPELINES[0]])
    assert found.ranks == [0, 5, 6, 11, 18, 23]
    assert sum(found.stands_for.values()) == WORLD
    # Ranks 6 and 11, of stage 1, also represent stage 2. Ranks 5, 11 and 23, of the last pipeline,
    # represent no other pipeline.
    assert found.stands_for == {0: 5, 6: 10, 18: 5, 5: 1, 11: 2, 23: 1}


def test_two_stages_have_nothing_between() -> None:
    found = choose_roles(4, [[0, 2], [1, 3]], [[0, 2]])
    assert found.stands_for == {0: 1, 1: 1, 2: 1, 3: 1}


def test_without_letters_the_first_and_the_last_rank_run() -> None:
    assert choose_roles(8, SHARDS, []).stands_for == {0: 7, 7: 1}
    assert choose_roles(1, [], []).stands_for == {0: 1}


def test_everybody_runs_who_is_there() -> None:
    present = frozenset({0, 1, 7})
    assert [stand_in(place, 1, present, 8) for place in (0, 1, 7)] == [0, 1, 7]


def test_what_lies_between_is_played_by_what_lies_between() -> None:
    present = frozenset({0, 1, 7})
    assert {stand_in(place, 0, present, 8) for place in range(2, 7)} == {1}
    assert stand_in(3, 0, frozenset({0, 7}), 8) == 0  # no inner rank runs, so rank 0 stands in


def test_an_expected_letter_is_one_that_goes_as_far() -> None:
    present = frozenset({0, 1, 7})
    assert letter_of(0, 1, present, 8) == (0, 1)
    assert letter_of(6, 7, present, 8) == (1, 2)
    assert letter_of(2, 1, present, 8) == (7, 6)
    assert letter_of(1, 0, frozenset({0}), 8) is None


def test_a_job_may_be_given_by_the_number_of_its_ranks() -> None:
    assert JobShape.parse(None, 1, 512, "distinct") == JobShape(8, 64, DISTINCT)
    assert JobShape.parse(None, 1, 512, "all") == JobShape(8, 64, None)
    assert JobShape.parse(4, 1, 8, None) == JobShape(4, 2, None)
    assert JobShape.parse(4, 2, None, "7, 0") == JobShape(4, 2, [0, 7])
    assert JobShape.parse(None, 1, None, None) == JobShape()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((None, 1, 12, None), "12 ranks do not fill machines of 8"),
        ((None, 1, 0, None), "the number of all ranks, from 1 on, not 0"),
        ((None, 2, 16, None), "goes without --nnodes"),
        ((None, 2, None, None), "takes the number of processes"),
        ((None, 1, None, "distinct"), "--ranks goes with"),
        ((8, 1, None, "0,8"), "ranks are numbers below 8"),
        ((8, 1, None, "some"), "not 'some'"),
        ((0, 1, None, None), "at least 1 node"),
        ((None, 1, 512, None), "512 ranks would be 512 processes here; --ranks distinct"),
        ((8, 200, None, None), "at most 1024 processes run here, not 1600"),
    ],
)
def test_what_is_no_job_is_refused(
    options: tuple[int | None, int, int | None, str | None], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        JobShape.parse(*options)
