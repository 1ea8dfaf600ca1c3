"""Tests the comparison of ranks: equal ones, outliers, and differences by chance."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.explanation.ranks.outliers import find_outliers, first_to_fail
from plimsoll.explanation.ranks.passing import Failure
from plimsoll.explanation.ranks.rank_groups import group_ranks
from plimsoll.explanation.ranks.rank_summary import RankSummary, summarize
from plimsoll.explanation.ranks.spread import beyond
from tests.made_ranks import FAULTS, Fault, Rank, history_of, program_of, write_rank
from tests.recordings import EXAMPLES

RECORDING = EXAMPLES / "gpt2_adamw.pickle.gz"
RANKS = 8


@cache
def summary_of(rank: Rank, number: int = 0) -> RankSummary:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rank.plim"
        write_rank(path, history_of(program_of(RECORDING), rank), rank=number, seed=number)
        return summarize(path)


def job(*ranks: Rank) -> list[RankSummary]:
    return [replace(summary_of(one), rank=number) for number, one in enumerate(ranks)]


def stands_out(summaries: list[RankSummary]) -> set[tuple[int, str]]:
    return {(one.rank, one.kind) for one in find_outliers(summaries, group_ranks(summaries))}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_one_rank_is_found_and_no_other_rank_is_named(fault: Fault) -> None:
    ranks = [Rank(10_000)] * RANKS
    ranks[3] = Rank(10_000, fault=fault, seed=5)
    summaries = job(*ranks)
    # A fault that changes blocks' sizes may also raise rank 3's peak. Then rank 3 is also "full".
    assert stands_out(summaries) - {(3, "full")} == {(3, fault)} - {(3, "full")}
    assert (3, fault) in stands_out(summaries)
    one = find_outliers(summaries, group_ranks(summaries))[0]
    assert one.bytes > 0
    assert one.line or fault == "out_of_memory"  # the failed request has no stack here


@pytest.mark.parametrize(
    "ranks",
    [
        [Rank(10_000, shard=1 - 0.02 * number) for number in range(RANKS)],
        [*[Rank(10_000)] * (RANKS - 1), Rank(10_000, shard=0.4)],
        [Rank(9_000 + 2_000 * number) for number in range(RANKS)],
        [Rank(10_000, lengths=0.9, seed=number) for number in range(RANKS)],
        [Rank(10_000, stage=number // 4, stages=2) for number in range(RANKS)],
        [Rank(10_000, stage=number, stages=RANKS) for number in range(RANKS)],
    ],
    ids=["shards", "the last shard", "events", "lengths", "two stages", "a stage each"],
)
def test_what_sharding_and_data_change_is_no_outlier(ranks: list[Rank]) -> None:
    assert stands_out(job(*ranks)) == set()


def test_stages_are_groups_and_shards_are_not() -> None:
    stages = [Rank(10_000, stage=number // 4, stages=2) for number in range(RANKS)]
    assert [one.ranks for one in group_ranks(job(*stages))] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    shards = [Rank(10_000, shard=1 - 0.02 * number) for number in range(RANKS)]
    assert [one.ranks for one in group_ranks(job(*shards))] == [[*range(RANKS)]]


def test_what_all_ranks_keep_is_no_outlier_but_what_one_keeps_more_is() -> None:
    leaking = summary_of(Rank(10_000, fault="leak", seed=5))
    everybody = [replace(leaking, rank=number) for number in range(RANKS)]
    assert stands_out(everybody) == set()


def test_the_first_to_fail_failed_in_the_earliest_step() -> None:
    whole = summary_of(Rank(10_000))

    def failing(rank: int, step: int | None, time_us: int) -> RankSummary:
        return replace(whole, rank=rank, failure=Failure(7, step, time_us, "train.py:3 f", 512))

    assert first_to_fail([whole]) is None
    clocks_differ = [failing(0, 5, 1_000), failing(1, 4, 2_000), failing(2, 4, 3_000)]
    first = first_to_fail(clocks_differ)
    assert first is not None
    assert first.rank == 1
    no_steps = [failing(0, None, 3_000), failing(1, 4, 2_000)]
    first = first_to_fail(no_steps)
    assert first is not None
    assert first.rank == 1


def test_who_fails_with_most_of_the_group_is_not_named_but_for_the_first() -> None:
    failed = summary_of(Rank(10_000, fault="out_of_memory", seed=5))
    everybody = [replace(failed, rank=number) for number in range(RANKS)]
    assert stands_out(everybody) == {(0, "out_of_memory")}


@given(
    st.lists(st.floats(0.9, 1.1), min_size=8, max_size=64),
    st.floats(1e-3, 1e9),
)
def test_usual_values_are_not_beyond_whatever_their_unit(values: list[float], unit: float) -> None:
    known = np.array(values) * unit
    assert not beyond(known, 0.25 * unit).any()
    assert beyond(np.append(known, 3 * unit), 0.25 * unit).tolist() == [False] * len(known) + [True]


def test_many_are_no_exceptions() -> None:
    assert not beyond(np.array([1.0] * 16 + [2.0] * 4), 0.1).any()
    assert not beyond(np.array([1.0]), 0.1).any()


@pytest.mark.parametrize(("elsewhere", "is_named"), [(0, True), (1, False)])
def test_who_is_fragmented_by_chance_as_others_are_is_not_named(
    elsewhere: int, is_named: bool
) -> None:
    one = summary_of(Rank(10_000))
    usual = one.peak_reserved_bytes // 10
    # In a group of eight ranks, one rank loses much memory to fragments. In a second group of the
    # same size, three ranks lose much if `elsewhere` is 1, and no rank does if it is 0.
    lost = [usual + place for place in range(7)] + [6 * usual]
    others = [usual + place for place in range(5)] + [usual * (1 + 3 * elsewhere)] * 3
    summaries = [
        replace(one, rank=rank, lost_bytes=size, kept_bytes=1000 * (1 + (rank > 7)))
        for rank, size in enumerate([*lost, *others])
    ]
    assert sorted(len(group.ranks) for group in group_ranks(summaries)) == [8, 8]
    assert (stands_out(summaries) == {(7, "fragmented")}) == is_named
