"""Tests memory plans: they are made from recordings and predictions, and later runs follow them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from plimsoll import InputError, replay
from plimsoll.engine.plans.making import plan_of
from plimsoll.engine.plans.plan_file import read_plan
from plimsoll.engine.plans.program_plan import Plan, made_for
from plimsoll.recordings.reading import read_recording
from tests.commands import run_plimsoll
from tests.recordings import LARGE, SMALL, Recorded, or_skipped, recordings_in
from tests.simulated import PROGRAMS

LAYERS = PROGRAMS / "prediction" / "two_layers.py"
VERBS = (
    ("replay", SMALL / "churn.default.pickle.gz"), ("predict", LAYERS),
    ("run", "--simulate", "H100"),
)  # fmt: skip
_WHOLE = ("default", "expandable")
_PROGRAMS = [each for each in recordings_in(LARGE) if each.name.split(".")[-1] in _WHOLE]
_SMALL = [each for each in recordings_in(SMALL) if each.name.endswith(".default")]


def name(recorded: Recorded | None) -> str | None:
    return recorded.name if recorded else None


def plan_of_file(path: Path) -> Plan:
    return plan_of([read_recording(path)])


@pytest.mark.parametrize("recorded", or_skipped(_PROGRAMS), ids=name)
def test_a_plan_of_another_run_leaves_hardly_anything_over(recorded: Recorded) -> None:
    mine, other = _WHOLE if recorded.name.endswith(_WHOLE[0]) else reversed(_WHOLE)
    path = recorded.path.with_name(recorded.path.name.replace(f".{mine}.", f".{other}."))
    (result,) = replay(recorded.path, allocator="elastic", plan=plan_of_file(path))
    assert result.plan is not None
    assert result.plan.placed_bytes > 0.99 * result.plan.requested_bytes
    (without,) = replay(recorded.path, allocator="elastic")
    most = 1.01 if recorded.workload == "prefetch_streams" else 1.004
    assert result.peak_reserved_bytes <= most * without.peak_active_bytes


@pytest.mark.parametrize("recorded", _SMALL, ids=name)
def test_a_wrong_plan_changes_nothing_that_a_program_gets(recorded: Recorded) -> None:
    others = [each for each in _SMALL if each != recorded]
    plans = []
    for each in (recorded, *others):
        try:
            plans.append(plan_of_file(each.path))
        except InputError:  # no plan: the first requests are missing, or all requests are small
            continue
    for plan in plans[:4]:
        traces = read_recording(recorded.path).devices
        if all(plan.for_process(None, trace.device) is None for trace in traces):
            continue
        results = replay(recorded.path, allocator="elastic", plan=plan)
        without = replay(recorded.path, allocator="elastic")
        for one, other in zip(results, without, strict=True):
            # under a limit, a wrong plan may leave too little memory for other requests
            if one.limit_bytes is not None:
                continue
            assert one.num_ooms == other.num_ooms
            assert one.events == other.events
            assert one.peak_allocated_bytes == other.peak_allocated_bytes


def test_a_device_without_a_part_of_the_plan_follows_none(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script, file = tmp_path / "two.py", tmp_path / "two.plim"
    script.write_text(
        "import torch\n"
        "kept = [torch.empty(4 << 20, dtype=torch.uint8, device=f'cuda:{i}') for i in (0, 1)]\n"
    )
    simulated = ("--simulate", "H100", "--gpus", "2", "--record", file)
    done = run_plimsoll("run", *simulated, script)
    assert done.returncode == 0, done.stderr
    (ranks,) = plan_of_file(file).ranks
    parts = [
        replace(ranks, devices={0: ranks.devices[0]}),
        replace(ranks, devices={7: ranks.devices[0]}),
    ]
    first, none = (Plan(made_for(None, None, None, None), (each,)) for each in parts)
    with_plan, without_plan = replay(file, allocator="elastic", plan=first)
    assert with_plan.plan is not None
    assert without_plan.plan is None
    with pytest.raises(InputError, match=r"no part for device 0, 1$"):
        replay(file, allocator="elastic", plan=none)


def test_a_recording_makes_a_plan_that_a_replay_follows(tmp_path: Path) -> None:
    recording = SMALL / "churn.default.pickle.gz"
    plan = tmp_path / "plan.json"
    made = run_plimsoll("replay", recording, "--write-plan", plan)
    assert made.returncode == 0, made.stderr
    assert f"plan: {plan}, " in made.stdout
    again = run_plimsoll("replay", recording, "--write-plan", plan)
    assert again.returncode == 2
    assert again.stderr.startswith(f"plimsoll: {plan}: exists already and is not overwritten; ")
    assert again.stderr.count("\n") == 1
    followed = run_plimsoll("replay", recording, "--allocator", "elastic", "--plan", plan, "--json")
    assert followed.returncode == 0, followed.stderr
    use = json.loads(followed.stdout)["plan"]
    assert use["placed_bytes"] == use["requested_bytes"] > 0
    assert use["dropped_after"] is None


@pytest.mark.parametrize("verb", VERBS)
def test_only_the_elastic_allocator_follows_a_plan(
    verb: tuple[str | Path, ...], tmp_path: Path
) -> None:
    plan = tmp_path / "plan.json"
    run_plimsoll("replay", SMALL / "churn.default.pickle.gz", "--write-plan", plan)
    script = [LAYERS] if verb[0] == "run" else []
    done = run_plimsoll(*verb, "--plan", plan, *script)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "plimsoll: a plan is for the elastic allocator, not native: add --allocator elastic\n"
    )


@pytest.mark.parametrize("verb", [*VERBS, ("run",)])
def test_what_is_no_plan_ends_a_command_before_it_begins(
    verb: tuple[str | Path, ...], tmp_path: Path
) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text("{}")
    script = [LAYERS] if verb[0] == "run" else []
    done = run_plimsoll(*verb, "--allocator", "elastic", "--plan", plan, *script)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == f'plimsoll: {plan}: no plan: there is no "plimsoll_plan"\n'


@pytest.mark.long
def test_a_prediction_makes_a_plan_that_a_run_follows_to_the_byte(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    plan = tmp_path / "plan.json"
    made = run_plimsoll("predict", LAYERS, "--write-plan", plan, "--", "256")
    assert made.returncode == 0, made.stderr
    assert f"plan: {plan}, " in made.stdout
    made_for = read_plan(plan).made_for
    assert (made_for.script, made_for.arguments, made_for.gpu) == (LAYERS.name, ("256",), "H100")

    asked = ("--allocator", "elastic", "--plan", plan)
    predicted = run_plimsoll("predict", LAYERS, *asked, "--json", "--", "256")
    assert predicted.returncode == 0, predicted.stderr
    assert "note: " not in predicted.stderr
    found = json.loads(predicted.stdout)
    assert found["plan"]["placed_bytes"] == found["plan"]["requested_bytes"] > 0

    account = tmp_path / "account.json"
    ran = run_plimsoll("run", "--simulate", "H100", *asked, "--json", account, LAYERS, "256")
    assert ran.returncode == 0, ran.stderr
    used = json.loads(account.read_text())
    assert used["peak_reserved_bytes"] == found["peak_reserved_bytes"]
    assert used["plan"].startswith("100.0% of the bytes of ")

    other = run_plimsoll("predict", LAYERS, *asked, "--gpu", "A100-80GB", "--", "512")
    assert other.returncode == 0, other.stderr
    assert (
        f"note: {plan} is a plan for {LAYERS.name} 256, not {LAYERS.name} 512 and for H100, not "
        "A100-80GB" in other.stderr.splitlines()
    )


@pytest.mark.long
def test_each_rank_of_a_job_has_its_own_plan(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "job.py"
    script.write_text(
        "import os, torch\n"
        "rank = int(os.environ['RANK'])\n"
        "torch.cuda.set_device(rank)\n"
        "for _ in range(20):\n"
        "    x = [torch.empty((3 + rank) << 20, device='cuda') for _ in range(4)]\n"
    )
    plan = tmp_path / "plan.json"
    made = run_plimsoll("predict", "--nproc-per-node", "2", script, "--write-plan", plan)
    assert made.returncode == 0, made.stderr
    found = read_plan(plan)
    assert [(each.rank, [*each.devices]) for each in found.ranks] == [(0, [0]), (1, [1])]
    heights = [found.ranks[rank].devices[rank].heights for rank in (0, 1)]
    assert heights[1][0] * 3 == heights[0][0] * 4
    asked = ("--allocator", "elastic", "--plan", plan, "--json")
    followed = run_plimsoll("predict", "--nproc-per-node", "2", script, *asked)
    assert followed.returncode == 0, followed.stderr
    use = json.loads(followed.stdout)["plan"]
    assert use["placed_bytes"] == use["requested_bytes"] > 0
