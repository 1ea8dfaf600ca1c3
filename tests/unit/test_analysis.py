"""Tests the live memory at the peak, and its categories, with hand-made runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from plimsoll.prediction.child.peak_contents import Run, find_peak
from plimsoll.recordings.events import Action, Frame
from plimsoll.recordings.label import Label
from plimsoll.recordings.origin import Origin

ALLOC, FREE = Action.ALLOC, Action.FREE_REQUESTED
FORWARD, BACKWARD, INPUT, WORKSPACE = range(1, 5)
TORCH = "/env/lib/python3.12/site-packages/torch/"
PROGRAM: Frame = ("train.py", 9, "main")
MODULE: Frame = (TORCH + "nn/modules/module.py", 1790, "_call_impl")
STACKS: dict[int, list[Frame]] = {
    FORWARD: [Origin("forward", keeps_graph=True, role="output").frame(), MODULE, PROGRAM],
    BACKWARD: [Origin("backward", keeps_graph=False, role="output").frame(), MODULE, PROGRAM],
    INPUT: [Origin("forward", keeps_graph=True, role="input").frame(), PROGRAM],
    WORKSPACE: [Origin("forward", keeps_graph=True, role="workspace").frame(), MODULE, PROGRAM],
}


def run(
    events: Sequence[tuple[int, int, int, int]],
    labels: list[Label] | None = None,
    steps: list[int] | None = None,
    shared: dict[int, int] | None = None,
) -> Run:
    """Makes a run.

    Args:
        events: The action, address, size and call stack (a number in STACKS) of each event.
        labels: For some blocks, what PyTorch reported about their use, such as "parameters".
        steps: The numbers of the events that end steps.
        shared: How many bytes of a block are in shared memory (host memory that the GPU uses
            directly). The keys are the numbers of the events that allocate the blocks.
    """
    return Run(
        action=np.array([event[0] for event in events], dtype=np.uint8),
        address=np.array([event[1] for event in events], dtype=np.uint64),
        size=np.array([event[2] for event in events], dtype=np.uint64),
        shared=np.array([(shared or {}).get(i, 0) for i in range(len(events))], dtype=np.uint64),
        stream=np.zeros(len(events), dtype=np.uint64),
        site=np.array([event[3] for event in events], dtype=np.uint32),
        frames=lambda site: STACKS.get(site, []),
        labels=labels or [],
        round_request=lambda size: (size + 511) // 512 * 512,
        steps=steps or [],
    )


def line(stack: int) -> str:
    return f"line {stack}"


def test_an_empty_run_has_an_empty_peak() -> None:
    peak = find_peak(run([]), line)
    assert peak.allocated_bytes == 0
    assert peak.top_lines == []
    assert peak.shared_lines == []


def test_what_is_freed_in_the_backward_pass_was_an_activation() -> None:
    peak = find_peak(
        run(
            [
                (ALLOC, 1, 1024, FORWARD),
                (ALLOC, 2, 2048, FORWARD),
                (FREE, 2, 2048, FORWARD),
                (ALLOC, 3, 512, BACKWARD),
                (FREE, 1, 1024, BACKWARD),
            ],
        ),
        line,
    )
    assert peak.by_category["activations"] == 1024
    assert peak.by_category["temporaries"] == 2048  # freed within the forward pass


def test_a_label_is_of_the_block_that_is_live_when_it_is_given() -> None:
    events = [
        (ALLOC, 1, 512, FORWARD),
        (FREE, 1, 512, FORWARD),
        (ALLOC, 1, 512, FORWARD),
        (ALLOC, 2, 512, FORWARD),
    ]
    peak = find_peak(run(events, labels=[Label(3, 1, "parameters")]), line)
    assert peak.by_category["parameters"] == 512
    assert peak.by_category["activations"] == 512
    stale = find_peak(run(events, labels=[Label(2, 1, "parameters")]), line)
    assert stale.by_category["parameters"] == 0


def test_roles_workspaces_and_rounding_are_told_apart() -> None:
    events = [(ALLOC, 1, 100, INPUT), (ALLOC, 2, 512, WORKSPACE), (ALLOC, 3, 512, INPUT)]
    peak = find_peak(run(events), line)
    assert peak.by_category["inputs"] == 612
    assert peak.by_category["workspaces"] == 512
    assert peak.by_category["rounding"] == 412
    assert sum(peak.by_category.values()) == peak.allocated_bytes == 1536


def test_lines_are_ranked_by_what_they_hold() -> None:
    events = [(ALLOC, 1, 512, FORWARD), (ALLOC, 2, 2048, INPUT), (ALLOC, 3, 1024, FORWARD)]
    peak = find_peak(run(events), line, lines=1)
    assert [(share.line, share.bytes, share.blocks) for share in peak.top_lines] == [
        ("line 3", 2048, 1)
    ]


def test_each_step_has_a_peak_of_its_own() -> None:
    events = [
        (ALLOC, 1, 512, FORWARD), (ALLOC, 2, 512, FORWARD), (FREE, 2, 512, FORWARD),
        (ALLOC, 2, 1024, FORWARD), (FREE, 2, 1024, FORWARD),
    ]  # fmt: skip
    peak = find_peak(run(events, steps=[3, 5]), line)
    assert peak.step_peaks_bytes == [1024, 1536]


def test_what_was_in_shared_memory_is_told_of_the_moment_when_it_held_the_most() -> None:
    events = [
        (ALLOC, 1, 4096, FORWARD), (ALLOC, 2, 1024, WORKSPACE), (FREE, 2, 1024, FORWARD),
        (ALLOC, 3, 512, INPUT),
        (ALLOC, 4, 2048, WORKSPACE), (FREE, 4, 2048, FORWARD), (ALLOC, 5, 8192, FORWARD),
    ]  # fmt: skip
    shared = {1: 1024, 3: 512, 4: 1536}
    peak = find_peak(run(events, shared=shared), line)
    assert peak.allocated_bytes == 4096 + 512 + 8192
    assert {name: size for name, size in peak.shared_by_category.items() if size} == {
        "workspaces": 1536,
        "inputs": 512,
    }
    assert [(share.line, share.bytes) for share in peak.shared_lines] == [
        ("line 4", 1536),
        ("line 3", 512),
    ]


class TestOverTime:
    """Tests which points of a run its timeline keeps."""

    def test_a_short_run_is_kept_event_by_event(self) -> None:
        events = [
            (Action.SEGMENT_ALLOC, 1, 4096, FORWARD), (ALLOC, 1, 512, FORWARD),
            (ALLOC, 2, 100, WORKSPACE), (FREE, 1, 512, FORWARD), (FREE, 2, 100, FORWARD),
            (Action.SEGMENT_FREE, 1, 4096, FORWARD),
        ]  # fmt: skip
        found = find_peak(run(events, steps=[3, 6]), line).timeline
        assert found is not None
        assert found.by_category == {
            "temporaries": [0, 512, 512, 0, 0, 0],
            "workspaces": [0, 0, 100, 100, 0, 0],
            "rounding": [0, 0, 412, 412, 0, 0],
        }
        assert found.allocated_bytes == [0, 512, 1024, 512, 0, 0]
        assert found.reserved_bytes == [4096, 4096, 4096, 4096, 4096, 0]
        assert (found.first_step, found.step_ends) == (1, [2, 5])

    def test_no_peak_vanishes_in_a_long_one(self) -> None:
        events = [(ALLOC if i % 2 == 0 else FREE, 1, 512, FORWARD) for i in range(10_000)]
        events[7776:7776] = [(ALLOC, 2, 1 << 20, FORWARD), (FREE, 2, 1 << 20, FORWARD)]
        found = find_peak(run(events), line).timeline
        assert found is not None
        assert len(found.reserved_bytes) == len(found.allocated_bytes) == 240
        assert max(found.allocated_bytes) == 1 << 20
        assert (found.first_event, found.end_event) == (0, 10_002)

    def test_of_many_steps_those_around_the_peak_are_kept(self) -> None:
        events = [(ALLOC if i % 2 == 0 else FREE, 1, 512, FORWARD) for i in range(400)]
        events[101] = (ALLOC, 2, 1 << 20, FORWARD)
        ends = list(range(20, 401, 20))
        found = find_peak(run(events, steps=ends), line).timeline
        assert found is not None
        assert (found.first_event, found.end_event) == (80, 140)
        assert found.first_step == 5
        assert found.step_ends == [19, 39, 59]

    def test_a_run_without_events_has_none(self) -> None:
        assert find_peak(run([]), line).timeline is None
