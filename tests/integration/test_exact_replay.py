"""Tests that replays give the addresses, segments and counters that were recorded on an H100."""

from __future__ import annotations

import pytest

from plimsoll import replay
from plimsoll.recordings.reading import read_recording
from tests.recordings import LARGE, SMALL, Recorded, recordings_in

# Programs whose history lacks some of their actions, so that a replay differs from the real run.
# Each value is the reason.
NOT_RECORDED = {
    "fraction_changed.default": "the limit changes in mid-run",
    "fraction_changed.expandable": "the limit changes in mid-run",
    "settings_changed.default": "expandable_segments changes in mid-run",
    "graphs.default": "PyTorch 2.11 does not name the pools of deleted graphs",
    "graphs.expandable": "PyTorch 2.11 does not name the pools of deleted graphs",
    "private_pools.default": "PyTorch 2.11 does not name deleted pools",
    "private_pools.expandable": "PyTorch 2.11 does not name deleted pools",
    "pool_on_oom.deleted": "PyTorch 2.11 does not name deleted pools",
    "pool_no_split.default": "a history does not say that a pool is never split",
    "pool_no_split.expandable": "a history does not say that a pool is never split",
}
# Programs that call empty_cache when there is nothing to free. Such a call leaves no event in the
# history, but increases a counter.
SILENT_SYNCS = {"empty_cache.default", "empty_cache.expandable", "graph_streams.default"}
# Programs in which PyTorch waits once for the streams of several freed blocks. It then frees these
# blocks in the order of a hash table. A replay cannot know that order, so its `inactive_split`
# counters may differ from the recorded ones.
ORDER_OF_COMPLETION = {"streams.limited"}
# Programs whose counters were reset in mid-run, or before the first event in the history.
OTHER_COUNTERS = {"stats_reset", "ring", "late_start"}

ALL = recordings_in(SMALL) + recordings_in(LARGE)
EXACT = [recorded for recorded in ALL if recorded.name not in NOT_RECORDED]


def name(recorded: Recorded) -> str:
    return recorded.name


def test_every_exception_is_a_recording_that_is_there() -> None:
    names = {recorded.name for recorded in recordings_in(SMALL)}
    assert names >= {*NOT_RECORDED, *SILENT_SYNCS, *ORDER_OF_COMPLETION}
    assert {recorded.workload for recorded in recordings_in(SMALL)} >= OTHER_COUNTERS


@pytest.mark.parametrize("recorded", EXACT, ids=name)
def test_every_address_and_segment_is_as_recorded(recorded: Recorded) -> None:
    (result,) = replay(recorded.path)
    assert result.first_difference is None
    assert result.matches_recording is True
    assert result.events == sum(recorded.facts["trace_entries"])


@pytest.mark.parametrize(
    "recorded", [r for r in EXACT if r.workload not in OTHER_COUNTERS], ids=name
)
def test_every_counter_is_as_recorded(recorded: Recorded) -> None:
    (result,) = replay(recorded.path, limit=recorded.limit, version="2.11")
    differing = {key for key, value in recorded.stats.items() if result.memory_stats[key] != value}
    if recorded.name in SILENT_SYNCS:
        differing.discard("num_sync_all_streams")
    if recorded.name in ORDER_OF_COMPLETION:
        differing = {key for key in differing if not key.startswith("inactive_split")}
    assert differing == set()


@pytest.mark.parametrize("recorded", [r for r in EXACT if r.limit], ids=name)
def test_the_given_limit_is_as_good_as_the_inferred_one(recorded: Recorded) -> None:
    (result,) = replay(recorded.path, limit=recorded.limit)
    assert result.matches_recording is True
    assert result.num_alloc_retries == recorded.stats["num_alloc_retries"]
    assert result.num_ooms == recorded.stats["num_ooms"]


@pytest.mark.parametrize("recorded", EXACT, ids=name)
def test_the_state_at_the_end_is_as_recorded(recorded: Recorded) -> None:
    from plimsoll import _core

    trace = read_recording(recorded.path).devices[0]
    start = trace.start(recorded.conf, "2.11")
    run = _core.Replay(
        "native", recorded.conf, "2.11", replay(recorded.path)[0].limit_bytes,
        1 << 40, None, True, _core.Completion.recorded, None, 0, _core.RecordedAllocator.native,
    )  # fmt: skip
    if start:
        run.restore(start)
    for batch in trace.batches():
        run.feed(batch.to_core())
    run.finish()

    def blocks(segments: list[_core.SegmentInfo]) -> list[tuple[int, int, str]]:
        return [(b.address, b.size, b.state) for segment in segments for b in segment.blocks]

    assert blocks(run.segments()) == blocks(trace.segments)


@pytest.mark.parametrize("recorded", [r for r in ALL if r.name in NOT_RECORDED], ids=name)
def test_what_a_history_cannot_tell_is_reported_as_a_difference(recorded: Recorded) -> None:
    (result,) = replay(recorded.path)
    assert result.matches_recording is False
    assert result.first_difference is not None


def test_programs_that_ran_out_of_memory_fail_at_the_recorded_event() -> None:
    for recorded in recordings_in(SMALL) + recordings_in(LARGE):
        if recorded.stats["num_ooms"] == 0 or recorded.name in NOT_RECORDED:
            continue
        (result,) = replay(recorded.path)
        trace = read_recording(recorded.path).devices[0]
        actions = [code for batch in trace.batches() for code in batch.action]
        assert result.first_oom_event == actions.index(8)
        assert result.num_ooms == recorded.stats["num_ooms"]
