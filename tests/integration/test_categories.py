"""Tests that `predict` finds correct categories. `explain` finds the same in a recording."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from plimsoll import explain, predict
from plimsoll.base.units import MiB
from tests.simulated import PROGRAMS, simulate

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch")

FOLDER = PROGRAMS / "categories"


def categories(name: str, folder: Path) -> dict[str, float]:
    """Returns the MiB of each category at the peak. Checks that prediction and recording agree."""
    script = FOLDER / f"{name}.py"
    predicted = predict(script)
    simulate(script, "--record", "run.plim", gpu="H100", folder=folder, environment={})
    recorded = explain(folder / "run.plim", advice=False)
    assert recorded.peak.categories_from == "program"
    assert recorded.peak.by_category == predicted.by_category
    return {name: size / MiB for name, size in predicted.by_category.items() if size}


@pytest.mark.long
def test_parameters_are_known_that_no_forward_pass_shows(tmp_path: Path) -> None:
    found = categories("weights", tmp_path)
    # MiB: 16 for the 4 layers, 16 for their average, 16 for `never_called`, and 4 for `cut`.
    assert found["parameters"] == pytest.approx(2 * 16 + 16 + 4, rel=0.01)
    assert found["gradients"] == pytest.approx(16 + 4, rel=0.01)
    assert found["inputs"] == pytest.approx(0.25)
    assert "other" not in found


def test_parameters_without_a_module_are_the_leaves_that_several_passes_reach(
    tmp_path: Path,
) -> None:
    found = categories("updated_by_hand", tmp_path)
    assert found["parameters"] == 2 * 4
    assert found["gradients"] == 2 * 4 + 2  # of the weights, and of x
    assert found["other"] == 2 * 4  # the momenta: nothing shows that they are optimizer state
    assert found["activations"] == pytest.approx(4, rel=0.01)
    assert "optimizer_state" not in found


@pytest.mark.long
def test_each_network_of_a_pair_has_its_state(tmp_path: Path) -> None:
    found = categories("gan", tmp_path)
    weights = 4 * (128 * 1024 + 1024 * 3072 + 3072 * 1024 + 1024) / MiB
    assert found["parameters"] == pytest.approx(weights, rel=0.01)
    assert found["gradients"] == pytest.approx(weights, rel=0.03)
    assert found["optimizer_state"] == pytest.approx(2 * weights, rel=0.01)
    assert found["inputs"] == pytest.approx(24 + 1, rel=0.01)


@pytest.mark.long
def test_what_a_checkpoint_computes_again_has_a_row_of_its_own(tmp_path: Path) -> None:
    found = categories("checkpointed", tmp_path)
    # MiB of one block: the results of its norm, of `up` and of gelu.
    assert found["recomputed_activations"] == pytest.approx(32 + 128 + 128, rel=0.01)
    assert found["inputs"] == pytest.approx(32)


def test_what_a_checkpoint_computes_again_has_the_line_that_called_the_checkpoint() -> None:
    found = predict(FOLDER / "checkpointed_sequence.py")
    assert found.by_category["recomputed_activations"] == 32 * MiB
    of_line = {share.line.rpartition("/")[2]: share.bytes for share in found.top_lines}
    assert of_line["checkpointed_sequence.py:11 <module>"] > 200 * MiB
    assert "(no Python line)" not in of_line


@pytest.mark.long
def test_a_graph_that_no_backward_pass_uses_is_no_temporary(tmp_path: Path) -> None:
    found = categories("forgotten_no_grad", tmp_path)
    # MiB: the results of twelve layers for two calls. The second call starts before the results of
    # the first call are freed.
    assert found["unused_activations"] == pytest.approx(2 * 12 * 16, rel=0.15)
    assert found.get("activations", 0) < 20


@pytest.mark.long
def test_a_cache_is_told_from_the_results_of_a_pass(tmp_path: Path) -> None:
    found = categories("generates", tmp_path)
    assert found["kv_cache"] > 4 * 64 * 0.9


def test_a_cache_that_is_made_for_all_tokens_is_one(tmp_path: Path) -> None:
    found = categories("serves", tmp_path)
    assert found["kv_cache"] == 4 * 8
