"""Compares replays under changed settings with recordings that were made under those settings."""

from __future__ import annotations

import pytest

from plimsoll import InputError, ReplayResult, replay
from tests.recordings import LARGE, SMALL, Recorded, or_skipped, recordings_in

# The peaks of these recordings depend on how far the GPU lagged behind the host. The tests replay
# the workload's default recording, where the GPU lagged differently. So they check only bounds.
TIMING = {"prefetch_streams.expandable", "prefetch_streams.limited"}


def pairs() -> list[tuple[Recorded, Recorded]]:
    large = recordings_in(LARGE)
    by_name = {recorded.name: recorded for recorded in large}
    return [(by_name[f"{other.workload}.default"], other) for other in large]


def pair_name(pair: tuple[Recorded, Recorded] | None) -> str:
    return pair[1].name if pair else "none"


def what_if(base: Recorded, other: Recorded) -> ReplayResult:
    (result,) = replay(base.path, conf=other.conf, limit=other.limit)
    return result


@pytest.mark.skipif(not LARGE.exists(), reason=f"the large recordings are not in {LARGE}")
def test_every_workload_was_recorded_under_other_settings_too() -> None:
    others = {other.workload for base, other in pairs() if other is not base}
    assert others == {recorded.workload for recorded in recordings_in(LARGE)}
    assert {other.name for _, other in pairs()} >= TIMING


@pytest.mark.parametrize("pair", or_skipped(pairs()), ids=pair_name)
def test_another_variant_is_foretold_within_half_a_percent(
    pair: tuple[Recorded, Recorded],
) -> None:
    base, other = pair
    result = what_if(base, other)
    recorded = other.stats["reserved_bytes.all.peak"]
    assert result.num_ooms == other.stats["num_ooms"]
    assert result.num_alloc_retries == other.stats["num_alloc_retries"]
    if other.name in TIMING:
        assert result.peak_reserved_range_bytes is not None
        least, most = result.peak_reserved_range_bytes
        assert least <= recorded <= most
    else:
        assert result.peak_reserved_bytes == pytest.approx(recorded, rel=0.005)


# Recordings of one program. All have the same seed, so the program requested the same sizes. None
# had a memory limit.
CHURN = [
    recorded
    for recorded in recordings_in(SMALL)
    if recorded.workload == "churn"
    and not recorded.limit
    and "fraction" not in recorded.conf
    and recorded.name != "churn.roundlist"
]


@pytest.mark.parametrize("other", CHURN, ids=lambda other: other.name)
def test_a_random_program_under_every_setting(other: Recorded) -> None:
    (base,) = (r for r in CHURN if r.name == "churn.default")
    (result,) = replay(base.path, conf=other.conf)
    assert result.peak_reserved_bytes == pytest.approx(
        other.stats["reserved_bytes.all.peak"], rel=0.005
    )


def test_a_cut_history_replays_under_other_rules_too() -> None:
    ring = SMALL / "ring.default.pickle.gz"
    (recorded,) = replay(ring)
    (uncached,) = replay(ring, allocator="uncached")
    assert uncached.reconstructed_start
    assert uncached.peak_allocated_bytes == pytest.approx(recorded.peak_allocated_bytes, rel=0.02)
    (expandable,) = replay(ring, conf="expandable_segments:True")
    assert expandable.events == recorded.events
    (limited,) = replay(ring, limit="1GiB")
    assert not limited.fits
    with pytest.raises(InputError, match=r"no memory for what was alive|cannot be restored"):
        replay(ring, gpu_memory="1GiB")


def test_a_replay_stops_where_the_program_would_have_died() -> None:
    (base,) = (r for r in CHURN if r.name == "churn.default")
    (whole,) = replay(base.path)
    (result,) = replay(base.path, limit=whole.peak_reserved_bytes // 2)
    assert result.matches_recording is None
    assert result.num_ooms == 1
    assert result.first_oom is not None
    assert result.first_oom.event == result.first_oom_event == result.events
    assert result.peak_reserved_bytes <= whole.peak_reserved_bytes // 2


def test_a_smaller_card_is_as_good_as_a_limit() -> None:
    (base,) = (r for r in CHURN if r.name == "churn.default")
    (limited,) = replay(base.path, limit="2GiB")
    (small,) = replay(base.path, gpu_memory="2GiB")
    assert small.first_oom_event == limited.first_oom_event
    assert small.peak_reserved_bytes == limited.peak_reserved_bytes


def test_it_may_hang_on_the_pace_of_other_streams_whether_the_memory_suffices() -> None:
    streams = SMALL / "streams.default.pickle.gz"
    (recorded,) = replay(streams)
    assert recorded.matches_recording
    # Without new settings, the replay tries only the recorded timing of the frees that wait for
    # other streams.
    assert (recorded.fits, recorded.fits_at_any_pace) == (True, None)
    (enough,) = replay(streams, gpu_memory="1300MiB")
    assert (enough.fits, enough.fits_at_any_pace) == (True, True)
    (close,) = replay(streams, gpu_memory="1150MiB")
    assert (close.fits, close.fits_at_any_pace) == (True, False)
    (too_little,) = replay(streams, gpu_memory="900MiB")
    assert (too_little.fits, too_little.fits_at_any_pace) == (False, False)
    # in this recording no free waits for a stream
    (alone,) = replay(SMALL / "churn.default.pickle.gz")
    assert (alone.fits, alone.fits_at_any_pace) == (True, True)


def test_without_a_cache_nothing_is_wasted_but_time() -> None:
    (base,) = (r for r in CHURN if r.name == "churn.default")
    (cached,) = replay(base.path)
    (uncached,) = replay(base.path, allocator="uncached")
    assert uncached.matches_recording is None
    assert uncached.utilization == 1
    assert uncached.driver_seconds > 20 * cached.driver_seconds
