"""Tests files of plans: written files are read back, and foreign files are refused."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll import InputError, _core
from plimsoll.engine.plans.making import plan_of
from plimsoll.engine.plans.plan_file import MOST_BYTES, read_plan, write_plan
from plimsoll.engine.plans.program_plan import MadeFor, Plan, RankPlan
from plimsoll.engine.plans.use import PlanUse
from plimsoll.recordings.reading import read_recording
from tests.fuzz import mutate_bytes, mutate_tree
from tests.recordings import SMALL

if TYPE_CHECKING:
    from pathlib import Path

MiB = 1 << 20
ELSEWHERE = (1 << 64) - 1
STREAMS = [
    ([(2, 1), (1, 30)], [(4 * MiB, 4 * MiB, 0), (8 * MiB, 6 * MiB, 4 * MiB), (6 * MiB,) * 3], 0),
    ([(1, 1)], [(2 * MiB, 2 * MiB, ELSEWHERE)], 2 * MiB),
]
VALUES: dict[str, Any] = {
    "plimsoll_plan": 1,
    "made_for": {"script": "a.py", "arguments": ["-n", "2"], "torch": "2.13", "gpu": "H100"},
    "ranks": [
        {
            "rank": None,
            "devices": [
                {
                    "device": 0,
                    "streams": [
                        {
                            "outside": 2 * MiB,
                            "sections": [[1, 1], [1, 3]],
                            "slots": [[4 * MiB, 4 * MiB, 0], [2 * MiB, 2 * MiB, None]],
                        }
                    ],
                }
            ],
        }
    ],
}


def changed(*path: str | int, to: Any) -> Any:
    values = json.loads(json.dumps(VALUES))
    place = values
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = to
    return values


def read(values: Any, folder: Path) -> Plan:
    path = folder / "plan.json"
    path.write_text(json.dumps(values))
    return read_plan(path)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    made_for = MadeFor("train.py", ("--name", "é"), "2.13", "H100")
    ranks = tuple(
        RankPlan(rank, {0: _core.ProgramPlan(STREAMS), 3: _core.ProgramPlan(STREAMS[:1])})
        for rank in (0, 1)
    )
    write_plan(Plan(made_for, ranks), tmp_path / "plan.json")
    found = read_plan(tmp_path / "plan.json")
    assert found.made_for == made_for
    for rank in (0, 1):
        for device, streams in ((0, STREAMS), (3, STREAMS[:1])):
            plan = found.for_process(rank, device)
            assert plan is not None
            assert plan.streams == streams
    assert found.for_process(2, 0) is None
    assert found.for_process(0, 1) is None


def test_a_plan_is_not_written_over_another_file(tmp_path: Path) -> None:
    plan = read(VALUES, tmp_path)
    with pytest.raises(InputError, match="exists already"):
        write_plan(plan, tmp_path / "plan.json")
    write_plan(plan, tmp_path / "plan.json", force=True)


STREAM = ("ranks", 0, "devices", 0, "streams", 0)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([], 'there is no "plimsoll_plan"'),
        ({}, 'there is no "plimsoll_plan"'),
        (changed("plimsoll_plan", to=2), "reads plans of the form 1"),
        (changed("plimsoll_plan", to=True), "reads plans of the form 1"),
        (
            changed("ranks", to=[*VALUES["ranks"], {**VALUES["ranks"][0], "rank": 0}]),
            "a rank has two plans",
        ),
        (changed("made_for", to=None), '"made_for" is no object'),
        (changed("made_for", "script", to=3), '"script" is no text'),
        (changed("made_for", "arguments", to=[1]), '"arguments" are no texts'),
        (changed("ranks", to={}), '"ranks" is no list'),
        (changed("ranks", to=VALUES["ranks"] * 2), "a rank has two plans"),
        (changed("ranks", 0, "rank", to=-1), "no number from 0 on"),
        (changed("ranks", 0, "rank", to=True), "no number from 0 on"),
        (changed("ranks", 0, "devices", to=VALUES["ranks"][0]["devices"] * 2), "two plans"),
        (changed(*STREAM, "slots", to=[[1, 2]]), "a slot is no list of 3 numbers"),
        (changed(*STREAM, "slots", 0, 0, to=1.5), "no number from 0 on"),
        (changed(*STREAM, "slots", 0, 2, to=7), "no multiple of 512 bytes"),
        (changed(*STREAM, "slots", 0, 0, to=MiB), "smallest size is above its largest"),
        (changed(*STREAM, "outside", to=None), '"outside" has something that is no number'),
        (changed(*STREAM, "sections", to=[[1, 1]]), "do not make up its slots"),
        (changed(*STREAM, "sections", to=[[1 << 40, 1]]), "too many slots"),
        (changed(*STREAM, "sections", 1, 1, to=0), "a section of a plan is empty"),
    ],
)
def test_one_line_says_why_it_is_no_plan(values: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(values, tmp_path)
    assert says in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path / 'plan.json'}: no plan: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\x80", b"{" * 100_000, b"[" * 100_000])
def test_what_is_no_json_is_no_plan(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(content)
    with pytest.raises(InputError, match="no plan: not JSON"):
        read_plan(tmp_path / "plan.json")


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "plan.json").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(InputError, match=r"larger than 64\.00 MiB"):
        read_plan(tmp_path / "plan.json")
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_plan(tmp_path / "other.json")


@pytest.mark.parametrize("first", [0, 300])
def test_any_bytes_make_a_plan_or_one_line(first: int, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plans = 0
    for number in range(first, first + 300):
        path.write_bytes(mutate_bytes(json.dumps(VALUES).encode(), random.Random(number)))
        with suppress(InputError):
            plans += bool(read_plan(path).ranks)
    assert 0 < plans < 300


@pytest.mark.parametrize("first", [0, 300])
def test_any_data_makes_a_plan_or_one_line(first: int, tmp_path: Path) -> None:
    plans = 0
    for number in range(first, first + 300):
        values = mutate_tree(json.loads(json.dumps(VALUES)), random.Random(number))
        try:
            (tmp_path / "plan.json").write_text(json.dumps(values))
        # the mutated values cannot be written as JSON
        except (TypeError, ValueError, UnicodeEncodeError):
            continue
        with suppress(InputError):
            plans += bool(read_plan(tmp_path / "plan.json").ranks)
    assert 0 < plans < 300


def test_a_plan_says_in_a_line_how_another_program_differs() -> None:
    mine = MadeFor("train.py", ("-n", "2"), "2.13", "H100")
    assert mine.difference(mine) is None
    assert mine.difference(MadeFor()) is None
    assert MadeFor().difference(mine) is None
    assert mine.difference(MadeFor("train.py", ("-n", "3"), "2.13", "L4")) == (
        "for train.py -n 2, not train.py -n 3 and for H100, not L4"
    )
    assert mine.difference(MadeFor("train.py", ("-n", "2"), "2.11", "H100")) == (
        "for PyTorch 2.13, not PyTorch 2.11"
    )


def test_a_plan_that_was_dropped_says_where() -> None:
    followed = PlanUse.of_streams([(10, 100 * MiB, 100 * MiB, None), (2, 8 * MiB, 4 * MiB, None)])
    assert followed.line() == (
        "96.3% of the bytes of 12 requests above 1 MiB lay where the plan says"
    )
    dropped = PlanUse.of_streams([(300, 9 * MiB, 0, (256, 8 * MiB, 2 * MiB))])
    assert dropped.line() == (
        "the plan was dropped after 256 requests above 1 MiB, because only 25% of a step's bytes "
        "lay where the plan says"
    )
    assert PlanUse.of_streams([]).line() == "the plan has no place for any request above 1 MiB"


def test_a_recording_that_begins_late_makes_no_plan() -> None:
    recording = read_recording(SMALL / "ring.default.pickle.gz")
    with pytest.raises(InputError, match="begins after the first request"):
        plan_of([recording])


def test_recordings_of_one_rank_make_no_plan_together() -> None:
    recording = read_recording(SMALL / "churn.default.pickle.gz")
    with pytest.raises(InputError, match="does not say which rank it is of"):
        plan_of([recording, recording])
