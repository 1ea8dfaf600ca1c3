"""Tests finding each block's category: from call stacks if there are any, else from lifetimes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from plimsoll.base.units import MiB
from plimsoll.recordings.analysis.block_history import find_lifetimes
from plimsoll.recordings.analysis.categories import find_categories
from plimsoll.recordings.analysis.category_names import CATEGORIES
from plimsoll.recordings.analysis.steps import find_steps
from plimsoll.recordings.events import Action
from plimsoll.recordings.reading import read_recording
from tests.recordings import EXAMPLES, LARGE
from tests.unit.test_analysis_steps import Program, training

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from plimsoll.recordings.events import Frame

TORCH = "/env/lib/python3.12/site-packages/torch/"
PROGRAM: Frame = ("/home/somebody/train.py", 9, "main")
STACKS: dict[int, list[Frame]] = {
    1: [(TORCH + "nn/modules/module.py", 1370, "convert"), PROGRAM],
    2: [(TORCH + "nn/modules/linear.py", 134, "forward"),
        (TORCH + "nn/modules/module.py", 1790, "_call_impl"), PROGRAM],
    3: [(TORCH + "optim/adam.py", 169, "_init_group"), PROGRAM],
    4: [PROGRAM],
    5: [(TORCH + "autograd/graph.py", 869, "_engine_run_backward"), PROGRAM],
}  # fmt: skip


def at_peak(path: Path, *, stacks: bool = True) -> tuple[str, dict[str, int]]:
    """Returns the source of the categories, and the live MiB of each category at the peak."""
    (trace,) = read_recording(path).devices
    found = find_lifetimes(trace)
    if not stacks:
        found = replace(found, stack=np.zeros_like(found.stack))
    failures = np.flatnonzero(trace.load().action == Action.OOM).tolist()
    categories = find_categories(found, find_steps(found), trace.frames, failures)
    live = found.live_at(int(found.level().argmax()))
    return categories.source, {
        name: int(found.size[live[categories.number[live] == number]].sum()) // MiB
        for number, name in enumerate(CATEGORIES)
    }


def test_stacks_tell_what_blocks_are_for() -> None:
    layers = 6
    program = Program()
    for layer in range(layers):
        program.malloc(4096 + layer, 1)
    state: list[int] = []
    gradients: list[int] = []
    for _ in range(5):
        data = program.malloc(100, 4)
        for block in gradients:
            program.free(block)
        hidden = []
        for layer in range(layers):
            scratch = program.malloc(50, 2)
            hidden.append(program.malloc(700 + layer, 2))
            program.free(scratch)
        gradients = []
        for layer in reversed(range(layers)):
            above = program.malloc(60, 0)  # without Python frames, as in autograd's thread
            gradients.append(program.malloc(4096 + layer, 5 * (layer % 2)))
            program.free(above)
            program.free(hidden.pop())
        program.free(data)
        state = state or [program.malloc(4096 + layer, 3) for layer in range(layers)]
        program.free(program.malloc(4096, 3))
    found = program.lifetimes()
    categories = find_categories(found, find_steps(found), lambda number: STACKS.get(number, []))
    names = [CATEGORIES[number] for number in categories.number]
    assert categories.source == "stacks"
    step = ["inputs", *["temporaries", "activations"] * layers]
    step += ["temporaries", "gradients"] * layers
    first = [*step, *["optimizer_state"] * layers, "temporaries"]
    assert names == ["parameters"] * layers + first + [*step, "temporaries"] * 4


def test_lifetimes_tell_parameters_gradients_and_activations_apart() -> None:
    program, begins = training(6)
    found = program.lifetimes()
    categories = find_categories(found, find_steps(found), lambda _: [])
    names = [CATEGORIES[number] for number in categories.number]
    assert categories.source == "lifetimes"
    assert names[:12] == ["parameters"] * 12
    step = [name for name, start in zip(names, found.start, strict=True) if start >= begins[3]]
    # A step allocates its input, then in each of 12 layers a temporary and an activation.
    assert step[:25] == ["activations", *["temporaries", "activations"] * 12]
    assert step[25:37] == ["gradients"] * 12


def cut_off(*, stacks: bool) -> tuple[Program, list[int], int]:
    """Makes steps. In the last step's forward pass a request fails, then all memory is freed.

    Returns:
        The program, the events of the last forward pass's activations, and the event of the
        failure.
    """
    layers, program = 6, Program()
    forward, backward = (2, 5) if stacks else (0, 0)
    weights = [program.malloc(4096 + layer, 1 * stacks) for layer in range(layers)]
    for _ in range(5):
        hidden = [program.malloc(700 + layer, forward) for layer in range(layers)]
        gradients = []
        for layer in reversed(range(layers)):
            gradients.append(program.malloc(4096 + layer, backward))
            program.free(hidden.pop())
        program.free(program.malloc(64, 3 * stacks))
        for block in gradients:
            program.free(block)
    kept, begins = [], []
    for layer in range(layers):
        scratch = program.malloc(50, forward)
        begins.append(len(program.events))
        kept.append(program.malloc(700 + layer, forward))
        program.free(scratch)
    failure = len(program.events)
    program.events.append((Action.OOM, 0, 700, forward))
    for block in [*kept, *weights]:
        program.free(block)
    return program, begins, failure


@pytest.mark.parametrize("stacks", [False, True])
def test_a_forward_pass_that_a_failed_request_cut_off_has_activations(stacks: bool) -> None:
    program, begins, failure = cut_off(stacks=stacks)
    found = program.lifetimes()
    categories = find_categories(
        found, find_steps(found), lambda number: STACKS.get(number, []), [failure]
    )
    assert categories.source == ("stacks" if stacks else "lifetimes")
    names = dict(zip(found.start.tolist(), (CATEGORIES[n] for n in categories.number), strict=True))
    assert [names[event] for event in begins] == ["activations"] * 6
    # Blocks freed before the failure are temporaries: one in each layer but the last.
    assert [names[event - 1] for event in begins[:-1]] == ["temporaries"] * 5
    assert [names[event] for event in range(6)] == ["parameters"] * 6


def test_without_steps_and_stacks_nothing_is_known() -> None:
    program = Program()
    program.malloc(512)
    found = program.lifetimes()
    categories = find_categories(found, find_steps(found), lambda _: [])
    assert categories.source == "nothing"
    assert [CATEGORIES[number] for number in categories.number] == ["other"]


def test_the_example_is_taken_apart_without_stacks() -> None:
    source, found = at_peak(EXAMPLES / "gpt2_adamw.pickle.gz", stacks=False)
    assert source == "lifetimes"
    assert found["parameters"] == 474  # 124.4 million parameters of 4 bytes, in MiB
    assert found["optimizer_state"] == 949  # two states per parameter
    assert found["other"] == 0


@pytest.mark.skipif(not LARGE.exists(), reason=f"the large recordings are not in {LARGE}")
def test_real_programs_are_taken_apart_by_their_stacks() -> None:
    source, found = at_peak(LARGE / "gpt2_adamw.stacks.pickle.gz")
    assert source == "stacks"
    assert (found["parameters"], found["optimizer_state"]) == (474, 949)
    # At the peak, in the backward pass, the gradient of the logits has 8 * 1024 * 50304 floats.
    assert found["temporaries"] == 1572
    assert found["other"] == 0
    source, found = at_peak(LARGE / "resnet_amp.stacks.pickle.gz")
    assert found["parameters"] == found["gradients"] == found["optimizer_state"] == 97
    assert found["activations"] > 2500


@pytest.mark.skipif(not LARGE.exists(), reason=f"the large recordings are not in {LARGE}")
@pytest.mark.parametrize("workload", ["bert_varlen_amp", "prefetch_streams"])
def test_a_limit_changes_no_categories(workload: str) -> None:
    def of(variant: str) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
        """Returns the size of each request, and its category."""
        (trace,) = read_recording(LARGE / f"{workload}.{variant}.pickle.gz").devices
        found = find_lifetimes(trace)
        categories = find_categories(found, find_steps(found), trace.frames)
        return found.size[found.start >= 0], categories.number[found.start >= 0]

    (free_sizes, free), (sizes, limited) = of("default"), of("limited")
    count = len(sizes)  # a run under a limit may end early
    assert (sizes == free_sizes[:count]).all()
    differing = sizes[limited != free[:count]].sum()
    assert differing < 0.001 * sizes.sum()


@pytest.mark.skipif(not LARGE.exists(), reason=f"the large recordings are not in {LARGE}")
def test_stacks_and_lifetimes_agree() -> None:
    for workload in ("gpt2_adamw", "resnet_amp"):
        _, by_stacks = at_peak(LARGE / f"{workload}.stacks.pickle.gz")
        _, by_lifetimes = at_peak(LARGE / f"{workload}.default.pickle.gz")
        for name in ("parameters", "optimizer_state", "gradients", "workspaces"):
            assert by_lifetimes[name] == by_stacks[name]
        in_passes = [sum(found[name] for name in ("activations", "temporaries", "inputs"))
                     for found in (by_stacks, by_lifetimes)]  # fmt: skip
        assert in_passes[0] == pytest.approx(in_passes[1], abs=2)
