"""The elastic allocator over recorded histories."""

from __future__ import annotations

import pytest

from plimsoll import replay
from tests.recordings import EXAMPLES, LARGE, SMALL, Recorded, recordings_in

# Under a limit elastic goes on where PyTorch fails, so the two do not serve the same requests.
_SMALL = [
    each
    for each in recordings_in(SMALL)
    if each.name.endswith(".default") and each.workload not in ("limited", "pool_on_oom")
]
_PROGRAMS = [each for each in recordings_in(LARGE) if each.name.endswith(".default")]


@pytest.mark.parametrize("recorded", _SMALL, ids=lambda recorded: recorded.name)
def test_elastic_serves_what_pytorch_served_from_no_more_memory(recorded: Recorded) -> None:
    for native, elastic in zip(
        replay(recorded.path), replay(recorded.path, allocator="elastic"), strict=True
    ):
        assert elastic.num_ooms <= native.num_ooms
        assert elastic.peak_allocated_bytes <= native.peak_allocated_bytes
        assert elastic.peak_reserved_bytes <= native.peak_reserved_bytes


@pytest.mark.parametrize("recorded", _PROGRAMS, ids=lambda recorded: recorded.name)
def test_elastic_wastes_two_percent_at_most(recorded: Recorded) -> None:
    (result,) = replay(recorded.path, allocator="elastic")
    assert result.utilization is not None
    assert result.utilization >= 0.98
    assert result.driver_seconds < 0.01 * recorded.facts["seconds"]


def test_elastic_wastes_next_to_nothing_of_a_training_run() -> None:
    (result,) = replay(EXAMPLES / "gpt2_adamw.pickle.gz", allocator="elastic")
    assert result.utilization is not None
    assert result.utilization >= 0.99
