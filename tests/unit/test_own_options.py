"""Tests that `fit` tries a script's own options that save memory, and names them in its answer."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from plimsoll.base.units import GiB
from plimsoll.prediction.fitting.attempts import Attempts
from plimsoll.prediction.fitting.changes.change import Change
from plimsoll.prediction.fitting.changes.own_options import own_option_changes
from plimsoll.prediction.fitting.known_sets import agree
from plimsoll.prediction.fitting.script_text import ScriptText
from plimsoll.prediction.options import Options
from plimsoll.prediction.survey import ArgumentUse, Survey
from tests.unit.test_plan_text import BASE, plan_of, tried


def changes(*uses: ArgumentUse) -> list[Change]:
    return list(own_option_changes(Survey(arguments=list(uses)), GiB))


@pytest.mark.parametrize(
    "name",
    [
        "--gradient-checkpointing",
        "--grad-checkpoint",
        "--use_activation_checkpointing",
        "--checkpointing",
        "--enable-ckpt",
        "--recompute",
        "--recompute-layers",
        "--remat",
    ],
)
def test_a_switch_for_checkpoints_is_turned_on_once(name: str) -> None:
    (change,) = changes(ArgumentUse([name], False))
    assert change.keeps_results
    assert change.is_of_options
    assert not agree((change, Change("recomputation", "recompute")))
    assert changes(ArgumentUse([name], True), ArgumentUse(["--checkpoint"], False)) == []


def test_samples_become_shorter_down_to_a_length_that_is_still_one() -> None:
    half, quarter = changes(ArgumentUse(["--seq-len"], 2048))
    assert (half.arguments, quarter.arguments) == (
        (("--seq-len", "1024"),),
        (("--seq-len", "512"),),
    )
    assert not half.keeps_results
    assert [each.steps for each in (half, quarter)] == [2, 4]
    assert changes(ArgumentUse(["--seq-len"], 128), ArgumentUse(["--len-words"], 2048)) == []


@pytest.mark.skipif(find_spec("torch") is None, reason="a request is checked by PyTorch's rules")
def test_options_stand_behind_the_scripts_own(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    request = Options(gpu="T4").request(str(script), ["--seq-len", "2048", "--steps", "3"])
    attempts = Attempts(request, script, ScriptText.of(""), GiB)
    (switch,) = changes(ArgumentUse(["--gradient-checkpointing"], False))
    half, _ = changes(ArgumentUse(["--seq-len"], 2048))
    words = ["--steps", "3", "--seq-len", "1024", "--gradient-checkpointing"]
    assert attempts.arguments((half, switch)) == words


def test_the_answer_names_an_option_that_is_enough_beside_a_faster_plan() -> None:
    enough = replace(
        tried(5, 0.2, "--gradient-checkpointing"), options=["--gradient-checkpointing"]
    )
    longer = replace(tried(5, 0.3, "--seq-len 512"), options=["--seq-len", "512"])
    large = replace(tried(7, 0.1, "--batch-size 2"), options=["--batch-size", "2"])
    says = (
        "  the script's own --gradient-checkpointing makes it fit too: it takes 5.00 GiB, and a "
        "step takes about 200 ms"
    )
    assert says in str(plan_of(tried=[BASE, enough, longer, large])).splitlines()
    assert "script's own" not in str(plan_of(tried=[BASE, large]))
    mine = replace(enough, is_plan=True)
    assert "script's own" not in str(plan_of(tried=[BASE, mine]))
    tight = tried(5.9, 0.15, "recompute blocks.0-3")
    assert (
        "  faster, with little to spare: recompute blocks.0-3, 5.90 GiB, and a step takes about "
        "150 ms (--headroom 0 chooses the fastest)"
    ) in str(plan_of(tried=[BASE, mine, tight])).splitlines()
    for other in (tried(5.9, 0.3, "slow"), tried(5, 0.15, "roomy"), tried(5.9, None, "unknown")):
        assert "faster" not in str(plan_of(tried=[BASE, mine, other]))
