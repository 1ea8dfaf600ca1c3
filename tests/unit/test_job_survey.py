"""Tests joining the surveys of ranks: what plimsoll observed while each rank's script ran."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from plimsoll.prediction.child.survey.job_survey import join_surveys
from plimsoll.prediction.request import Request
from plimsoll.prediction.survey import AllocatorUse, ArgumentUse, Place, Survey, Wrapping
from plimsoll.torch.simulated.setup import Setup

if TYPE_CHECKING:
    from pathlib import Path


def request(folder: Path) -> Request:
    return Request("train.py", [], Setup(("T4",)), survey=str(folder / "survey.json"))


def test_it_is_the_first_ranks_with_what_the_fullest_one_needs(tmp_path: Path) -> None:
    first = Survey(
        arguments=[ArgumentUse(["--depth"], 2)],
        allocators=[
            AllocatorUse("native", "", 10, 20, fits=True),
            AllocatorUse("elastic", "", 10, 11, fits=True),
        ],
        ranks=12,
        wrappings=[Wrapping("DistributedDataParallel", Place(3, "main"), {}, comes_first=True)],
    )
    other = Survey(
        allocators=[
            AllocatorUse("native", "", 15, 16, fits=True),
            AllocatorUse("elastic", "", 15, 18, fits=False),
        ]
    )
    for rank, survey in ((0, first), (11, other)):
        (tmp_path / f"survey.json.{rank}").write_text(json.dumps(survey.to_dict()))
    join_surveys(request(tmp_path))
    joined = Survey.from_dict(json.loads((tmp_path / "survey.json").read_text()))
    assert (joined.arguments, joined.ranks, joined.wrappings) == (
        first.arguments, 12, first.wrappings
    )  # fmt: skip
    assert joined.allocators == [
        AllocatorUse("native", "", 10, 20, fits=True),
        AllocatorUse("elastic", "", 15, 18, fits=False),
    ]


@pytest.mark.parametrize(
    ("ranks", "least"),
    [
        # Each rank is (`peak_reserved_bytes`, `fits`, `least_bytes`) of an `AllocatorUse`, where 9
        # bytes are available. A rank that reserves 12 may fit, because the allocator can release
        # cached memory. The result is the largest `least_bytes` of the ranks that do not fit.
        ([(12, False, 10), (11, True, None)], 10),
        ([(12, True, None), (11, False, 10)], 10),
        ([(12, False, 10), (12, False, 11)], 11),
        ([(12, True, None), (8, True, None)], None),
    ],
)
def test_all_ranks_have_room_in_the_least(
    tmp_path: Path, ranks: list[tuple[int, bool, int | None]], least: int | None
) -> None:
    for rank, (reserved, fits, needs) in enumerate(ranks):
        use = AllocatorUse("elastic", "", 7, reserved, fits, needs)
        survey = Survey(allocators=[use])
        (tmp_path / f"survey.json.{rank}").write_text(json.dumps(survey.to_dict()))
    join_surveys(request(tmp_path))
    joined = Survey.from_dict(json.loads((tmp_path / "survey.json").read_text()))
    assert joined.allocators == [
        AllocatorUse("elastic", "", 7, 12, all(fits for _, fits, _ in ranks), least)
    ]


def test_ranks_that_left_nothing_make_no_survey(tmp_path: Path) -> None:
    join_surveys(request(tmp_path))
    assert not list(tmp_path.iterdir())
