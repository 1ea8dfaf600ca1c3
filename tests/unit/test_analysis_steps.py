"""Tests that plimsoll finds a program's steps from the rhythm of its allocations."""

from __future__ import annotations

import random

import numpy as np
import pytest

from plimsoll.recordings.analysis import steps as steps_module
from plimsoll.recordings.analysis.block_history import BlockHistory, find_lifetimes
from plimsoll.recordings.analysis.lifetimes import Lifetimes
from plimsoll.recordings.analysis.steps import find_steps
from plimsoll.recordings.events import Action, EventBatch
from plimsoll.recordings.reading import read_recording
from plimsoll.recordings.recording import LoadedTrace, Mark
from tests.recordings import EXAMPLES, LARGE

STEPS = {
    "bert_varlen_amp": 40,  # the number of steps in the workload's main()
    "gpt2_adamw": 4,
    "llama_checkpointed": 4,
    "llama_generate": 256,  # tokens, as 4 requests generate 64 each
    "mixtral_moe": 4,
    "prefetch_streams": 30,
    "resnet_amp": 5,
}


class Program:
    """Writes an allocator's history: `malloc` appends one event, and `free` appends two."""

    def __init__(self) -> None:
        self.events: list[tuple[int, int, int, int]] = []
        self._unused = list(range(5000, 0, -1))
        self._sizes: dict[int, int] = {}

    def malloc(self, size: int, stack: int = 0) -> int:
        address = self._unused.pop()
        self._sizes[address] = size
        self.events.append((Action.ALLOC, address, size, stack))
        return address

    def free(self, address: int) -> None:
        for action in (Action.FREE_REQUESTED, Action.FREE_COMPLETED):
            self.events.append((action, address, self._sizes[address], 0))
        self._unused.append(address)

    def trace(self) -> LoadedTrace:
        table = np.array(self.events, dtype=np.uint64).reshape(-1, 4)
        zeros = np.zeros(len(table), dtype=np.uint64)
        others = dict.fromkeys(("stream", "time_us", "pool_first", "pool_second"), zeros)
        columns = zip(("action", "address", "size", "stack"), table.T, strict=True)
        return LoadedTrace(0, EventBatch.of({**others, **dict(columns)}), [])

    def lifetimes(self) -> Lifetimes:
        return find_lifetimes(self.trace())


def training(steps: int, *, seed: int = 0, layers: int = 12) -> tuple[Program, list[int]]:
    """Returns a training program, and the number of the event at which each step begins.

    Each step has a batch of random length.
    """
    chance = random.Random(seed)
    program = Program()
    for layer in range(layers):
        program.malloc(4096 + layer)
    begins = []
    for _ in range(steps):
        begins.append(len(program.events))
        length = chance.randrange(100, 1000)
        kept = [program.malloc(length * 8)]
        for layer in range(layers):
            scratch = program.malloc(length)
            kept.append(program.malloc(length * (3 + layer % 3)))
            program.free(scratch)
        gradients = []
        for layer in reversed(range(layers)):
            gradients.append(program.malloc(4096 + layer))
            program.free(kept.pop())
        program.free(kept.pop())
        for block in gradients:
            program.free(block)
    return program, begins


@pytest.mark.parametrize("steps", [3, 4, 17, 100])
def test_the_steps_of_a_loop_with_varying_lengths_are_found(steps: int) -> None:
    program, begins = training(steps)
    found = find_steps(program.lifetimes())
    assert found.source == "rhythm"
    assert found.boundaries[:-1].tolist() == begins
    assert found.confidence > 0.8


@pytest.mark.parametrize("events_each", [50, 1 << 18])
def test_of_a_long_history_the_middle_is_searched(
    monkeypatch: pytest.MonkeyPatch, events_each: int
) -> None:
    program, begins = training(60)
    history = BlockHistory(program.trace(), events=events_each)
    whole = find_steps(history)
    assert whole.boundaries[:-1].tolist() == begins
    monkeypatch.setattr(steps_module, "MOST_SEARCHED", len(program.events) // 4)
    found = find_steps(history)
    # Here plimsoll examines only the middle of the history, so it may choose another allocation as
    # the beginning of a step. It must still find all 60 steps.
    assert len(found) == 60
    assert found.boundaries.tolist() == find_steps(program.lifetimes()).boundaries.tolist()


def test_there_are_no_steps_in_noise() -> None:
    chance = random.Random(3)
    program = Program()
    live: list[int] = []
    for _ in range(4000):
        if live and chance.random() < 0.5:
            program.free(live.pop(chance.randrange(len(live))))
        else:
            live.append(program.malloc(chance.randrange(1, 1 << 20)))
    found = find_steps(program.lifetimes())
    assert len(found) == 0
    assert found.boundaries.tolist() == []


def test_a_few_events_are_no_rhythm() -> None:
    program = Program()
    for _ in range(5):
        program.free(program.malloc(512))
    assert len(find_steps(program.lifetimes())) == 0
    assert len(find_steps(Program().lifetimes())) == 0


def test_marks_win() -> None:
    program, _ = training(5)
    marks = [Mark(100, 0, "step", 0), Mark(50, 0, "step", None), Mark(70, 0, "epoch", 0),
             Mark(60, 0, "step", 1), Mark(10**9, 0, "step", 0)]  # fmt: skip
    found = find_steps(program.lifetimes(), marks)
    assert found.source == "marks"
    assert found.boundaries.tolist() == [0, 50, 100, len(program.events)]
    assert len(found) == 3
    assert found.confidence == 1


def test_the_steps_of_the_example() -> None:
    (trace,) = read_recording(EXAMPLES / "gpt2_adamw.pickle.gz").devices
    assert len(find_steps(find_lifetimes(trace))) == 4


@pytest.mark.skipif(not LARGE.exists(), reason=f"the large recordings are not in {LARGE}")
@pytest.mark.parametrize("variant", ["default", "expandable"])
@pytest.mark.parametrize(("workload", "steps"), STEPS.items())
def test_the_steps_of_real_programs(workload: str, steps: int, variant: str) -> None:
    (trace,) = read_recording(LARGE / f"{workload}.{variant}.pickle.gz").devices
    found = find_steps(find_lifetimes(trace))
    assert len(found) == steps
    assert found.confidence > 0.7
