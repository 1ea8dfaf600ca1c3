"""Tests that a block's origin, its label, and PyTorch's frames in its stack show its category."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.recordings.analysis.categories import find_categories
from plimsoll.recordings.analysis.category_names import CATEGORIES
from plimsoll.recordings.analysis.evidence import Place, find_evidence, place_of
from plimsoll.recordings.analysis.steps import NO_STEPS
from plimsoll.recordings.events import Frame
from plimsoll.recordings.label import Label
from plimsoll.recordings.origin import PHASES, ROLES, Origin, origin_of
from tests.unit.test_analysis_steps import Program

TORCH = "/env/lib/python3.12/site-packages/torch/"
PROGRAM: Frame = ("train.py", 9, "main")
CALL: Frame = (TORCH + "nn/modules/module.py", 1790, "_call_impl")
STEP: Frame = (TORCH + "optim/adamw.py", 120, "step")
UNPACK: Frame = (TORCH + "utils/checkpoint.py", 1100, "unpack_hook")


@given(
    phase=st.sampled_from(PHASES),
    records=st.booleans(),
    role=st.sampled_from([None, *ROLES]),
    has_grad_fn=st.booleans(),
)
def test_an_origin_is_read_as_it_was_written(
    phase: str, records: bool, role: str | None, has_grad_fn: bool
) -> None:
    origin = Origin(phase, records, role, has_grad_fn)
    assert origin_of([origin.frame(), PROGRAM]) == origin


@pytest.mark.parametrize(
    "words", ["", "with grad_fn", "sideways pass", "forward pass, output, copy", "output"]
)
def test_other_words_are_no_origin(words: str) -> None:
    filename = Origin("forward", keeps_graph=False).frame()[0]
    assert origin_of([(filename, 0, words)]) is None
    assert origin_of([PROGRAM]) is None
    assert origin_of([]) is None


@pytest.mark.parametrize(
    ("frames", "origin", "place"),
    [
        ([CALL, PROGRAM], None, Place.FORWARD),
        ([], None, Place.BACKWARD),
        ([CALL, UNPACK], None, Place.RECOMPUTED),
        ([CALL, PROGRAM], Origin("backward", keeps_graph=False), Place.BACKWARD),
        ([CALL, UNPACK], Origin("backward", keeps_graph=True), Place.RECOMPUTED),
        ([CALL, UNPACK], Origin("backward", keeps_graph=False), Place.BACKWARD),
        ([STEP, PROGRAM], Origin("forward", keeps_graph=False), Place.OPTIMIZER),
        ([PROGRAM, STEP, PROGRAM], Origin("forward", keeps_graph=True), Place.PROGRAM),
        ([CALL, PROGRAM, STEP, PROGRAM], Origin("forward", keeps_graph=True), Place.FORWARD),
        ([], Origin("forward", keeps_graph=True), Place.PROGRAM),
        ([(TORCH + "nn/parallel/distributed.py", 9, "_ddp_init_helper")], None, Place.COLLECTIVE),
        (
            [(TORCH + "distributed/tensor/_dispatch.py", 9, "dispatch"), CALL, PROGRAM],
            None,
            Place.FORWARD,
        ),
        (
            [(TORCH + "distributed/fsdp/_fully_shard/_fsdp_param.py", 9, "unshard"), CALL],
            None,
            Place.BUILD,
        ),
    ],
)
def test_a_stack_says_which_part_of_a_program_asked(
    frames: list[Frame], origin: Origin | None, place: Place
) -> None:
    assert place_of(frames, origin) == place


def test_the_last_label_of_a_block_decides() -> None:
    program = Program()
    program.free(program.malloc(512))
    program.malloc(512)  # gets the same address
    found = program.lifetimes()
    address, end = int(found.address[0]), found.event_count
    assert found.address[1] == address
    labels = [
        Label(1, address, "inputs"),
        Label(end, address, "gradients"),
        Label(end, address, "parameters"),
        Label(end, address, "a name of a later version"),
        Label(end, address + 1, "gradients"),
    ]
    categories = find_categories(found, NO_STEPS, lambda _: [], labels=labels)
    assert categories.source == "program"
    assert [CATEGORIES[number] for number in categories.number] == ["inputs", "parameters"]


@pytest.mark.parametrize(
    ("frames", "is_named"),
    [
        ([("cache_utils.py", 9, "update"), ("model.py", 9, "forward"), CALL, PROGRAM], True),
        ([("model.py", 9, "extend_cache"), ("model.py", 9, "forward"), CALL, PROGRAM], True),
        ([("kv_cache.py", 9, "forward"), CALL, ("model.py", 9, "forward"), CALL, PROGRAM], True),
        ([("kv_cache.py", 9, "forward"), CALL, PROGRAM], True),
        ([("my_cache.py", 9, "forward"), CALL, ("my_cache.py", 50, "<module>")], False),
        ([("my_cache.py", 9, "forward"), CALL, ("my_cache.py", 50, "forward"), CALL], False),
        ([("growing_cache.py", 9, "attend"), ("growing_cache.py", 5, "forward"), CALL], False),
        ([("past_events.py", 9, "main"), ("past_events.py", 90, "<module>")], False),
    ],
)
def test_a_file_of_a_whole_model_or_program_names_no_cache(
    frames: list[Frame], is_named: bool
) -> None:
    program = Program()
    program.malloc(512, 1)
    found = find_evidence(program.lifetimes(), lambda _: frames, [], CATEGORIES)
    assert found.names_cache.tolist() == [is_named]
