"""Tests that the C++ core refuses unknown option values instead of replacing them by a default."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll import _core
from plimsoll.recordings.checks import check_settings
from plimsoll.recordings.segment_rows import segment_from_json


def replay(completion: Any, recorded: Any) -> _core.Replay:
    return _core.Replay(
        "native", "", "2.11", None, 1 << 30, None, False, completion, None, 0, recorded
    )


@pytest.mark.parametrize("word", ["later", "", "late"])
def test_a_completion_is_one_that_the_core_has(word: str) -> None:
    known = _core.RecordedAllocator.native
    assert replay(_core.Completion.late, known).events == 0
    with pytest.raises(TypeError):
        replay(word, known)


def test_each_allocator_that_is_recorded_has_its_own_rules() -> None:
    assert {each.name for each in _core.RecordedAllocator} == set(_core.allocator_names())
    with pytest.raises(TypeError):
        replay(_core.Completion.recorded, "cudaMallocAsync")
    with pytest.raises(ValueError, match="recorded allocator is unknown"):
        check_settings({"allocator": "cudaMallocAsync"})


@pytest.mark.parametrize("state", ["active_allocated", "active_pending_free", "inactive"])
def test_a_block_has_a_state_of_pytorchs(state: str) -> None:
    assert _core.BlockInfo(512, 512, 0, state).state == state


def test_a_block_of_an_unknown_state_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown state of a block: 'gone'"):
        segment_from_json(
            {
                "address": 512, "total_size": 512, "stream": 0, "pool": [0, 0], "small": True,
                "expandable": False, "blocks": [[512, 512, 0, "gone"]],
            }
        )  # fmt: skip
