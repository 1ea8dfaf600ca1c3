"""Tests the range of a prediction if sizes depend on data whose values are unknown.

One run assumes the values that give the smallest sizes. Another run assumes the values that give
the largest sizes. The tests check which ranks run, and the ranges that result.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from plimsoll.base.errors import ScriptError
from plimsoll.base.units import MiB
from plimsoll.prediction import ranges
from plimsoll.prediction.assumed import LETS_GO_LATER, SIZES_BY_DATA, Assumed
from plimsoll.prediction.options import Options
from plimsoll.prediction.rank_use import RankUse, alike
from plimsoll.prediction.reruns import Reruns
from tests.unit.test_fit import prediction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from plimsoll.prediction.request import Request
    from plimsoll.prediction.results import Prediction

WATCHDOG = [Assumed(LETS_GO_LATER, "NCCL's watchdog", None, 1)]
ROUTER = [Assumed(SIZES_BY_DATA[0], "aten::nonzero", None, 1)]
SIZES = {"balanced": 4 * MiB, "most": 6 * MiB, "least": 2 * MiB}


def use(rank: int, size: int, stage: int = 0) -> RankUse:
    span = (size + stage, size + stage)
    return RankUse(
        rank, 0, rank, size + stage, size + stage, size + stage, 0, None, True, span, span, span
    )


def of_ranks(size: int, ranks: list[int], assumptions: list[Assumed]) -> Prediction:
    """Returns a prediction for these ranks; the last one has the least headroom.

    Even ranks hold `size` bytes, and odd ranks hold one byte more.
    """
    uses = [use(rank, size, rank % 2) for rank in ranks]
    worst = ranks[-1]
    return replace(prediction(size), ranks=uses, worst_rank=worst, assumptions=assumptions)


class Trials:
    """Replaces the processes that run a script: keeps each request, and gives a prepared answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, fails_alone: bool = False) -> None:
        self.asked: list[tuple[str, list[int] | None]] = []
        self._fails_alone = fails_alone
        monkeypatch.setattr(ranges, "started", self._started)
        monkeypatch.setattr(ranges, "run", lambda asked, **_: self._answer(asked))

    @contextmanager
    def _started(self, asked: Request, **_: object) -> Iterator[Callable[[], Prediction]]:
        yield lambda: self._answer(asked)

    def _answer(self, asked: Request) -> Prediction:
        self.asked.append((asked.setup.unknown, asked.ranks))
        if self._fails_alone and asked.ranks is not None:
            raise ScriptError("script.py", 1)
        return of_ranks(SIZES[asked.setup.unknown], asked.ranks or [0, 1, 2, 3], WATCHDOG)


def with_range(request: Request, found: Prediction) -> Prediction:
    return ranges.with_range(request, found, Reruns.of(request, found, lambda _: None))


@pytest.fixture
def request_of_four() -> Request:
    return Options(gpu="T4", nproc_per_node=4).request("json.tool", is_module=True)


def test_of_ranks_that_are_alike_one_runs_and_all_have_its_range(
    request_of_four: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = Trials(monkeypatch)
    found = with_range(request_of_four, of_ranks(4 * MiB, [0, 1, 2, 3], WATCHDOG))
    assert trials.asked == [("most", [0, 1]), ("least", [0, 1])]
    for rank in found.ranks:
        odd = rank.rank % 2
        assert rank.peak_allocated_bytes == 4 * MiB + odd
        assert rank.peak_allocated_range_bytes == (2 * MiB + odd, 6 * MiB + odd)
        assert rank.device_used_range_bytes == (2 * MiB + odd, 6 * MiB + odd)
    assert found.peak_reserved_range_bytes == (2 * MiB + 1, 6 * MiB + 1)


def test_all_run_where_a_rank_does_not_go_on_without_the_others(
    request_of_four: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = Trials(monkeypatch, fails_alone=True)
    found = with_range(request_of_four, of_ranks(4 * MiB, [0, 1, 2, 3], WATCHDOG))
    assert [ranks for _, ranks in trials.asked if ranks is None] == [None, None]
    assert found.ranks[2].peak_allocated_range_bytes == (2 * MiB, 6 * MiB)


@pytest.mark.parametrize(
    ("ranks", "assumptions"), [([0, 1], WATCHDOG), ([0, 1, 2, 3], WATCHDOG + ROUTER)]
)
def test_all_run_where_they_differ_or_send_what_hangs_on_data(
    request_of_four: Request,
    monkeypatch: pytest.MonkeyPatch,
    ranks: list[int],
    assumptions: list[Assumed],
) -> None:
    trials = Trials(monkeypatch)
    with_range(request_of_four, of_ranks(4 * MiB, ranks, assumptions))
    assert trials.asked == [("most", None), ("least", None)]


def test_nothing_runs_where_no_size_depends_on_data(
    request_of_four: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = Trials(monkeypatch)
    found = of_ranks(4 * MiB, [0, 1], [])
    assert with_range(request_of_four, found) is found
    assert trials.asked == []


def test_ranks_are_alike_on_any_card_but_not_with_another_figure() -> None:
    assert alike([use(0, MiB), use(1, 2 * MiB), use(2, MiB)]) == [[0, 2], [1]]
