"""Tests changes that shard a job so that its ranks fit."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from plimsoll.base.units import GiB, MiB
from plimsoll.engine.gpus.profiles import gpu_profile
from plimsoll.prediction.fitting import plan_search, sets_to_try
from plimsoll.prediction.fitting.attempts import Attempts
from plimsoll.prediction.fitting.changes.batch import batch_changes
from plimsoll.prediction.fitting.changes.jobs import job_changes
from plimsoll.prediction.fitting.changes.recomputing import recomputing_change
from plimsoll.prediction.fitting.script_text import ScriptText
from plimsoll.prediction.fitting.within import fit_within
from plimsoll.prediction.options import Options
from plimsoll.prediction.predict import predict
from plimsoll.prediction.survey import Recomputation
from tests.commands import run_plimsoll
from tests.simulated import PROGRAMS
from tests.unit.job_scripts import change_of, made, of_ddp

pytest.importorskip("torch")

if TYPE_CHECKING:
    from pathlib import Path

DATA_PARALLEL = PROGRAMS / "jobs" / "data_parallel.py"
FULLY_SHARDED = PROGRAMS / "jobs" / "fully_sharded.py"


@pytest.mark.long
def test_a_plan_shards_and_its_copy_is_predicted_to_take_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sets_to_try, "plain_changes", lambda *_: iter(()))
    # The search may run four simulations: enough to try each change alone.
    monkeypatch.setattr(plan_search, "MOST_SIMULATIONS", 4)
    copy = tmp_path / "changed.py"
    plan = fit_within(DATA_PARALLEL, within="556MiB", gpu="T4", nproc_per_node=2, apply=copy)
    assert plan.fits, plan
    assert ["shard" in change.name for change in plan.plan] == [True]
    assert plan.command.endswith(f" -m torch.distributed.run --nproc-per-node 2 {copy}")
    again = predict(
        copy, gpu="T4", nproc_per_node=2, allocator=plan.allocator,  # type: ignore[arg-type]
        conf=plan.conf, dedicated=556 * MiB - gpu_profile("T4").context_bytes,
    )  # fmt: skip
    assert again.fits
    assert again.peak_reserved_bytes == plan.peak_reserved_bytes
    assert again.device_used_bytes == plan.device_used_bytes
    assert plan.device_used_bytes == max(use.device_used_bytes or 0 for use in again.ranks)


@pytest.mark.long
def test_a_sharded_model_is_whole_for_less_time_or_on_the_host() -> None:
    request = Options(gpu="T4", nproc_per_node=2).request(FULLY_SHARDED)
    script = ScriptText.of(FULLY_SHARDED.read_text())
    attempts = Attempts(request, FULLY_SHARDED, script, GiB)
    (base,) = attempts.run([()])
    assert base.survey is not None
    assert base.survey.ranks == 2
    (optimizer,) = base.survey.optimizers
    assert optimizer.parameter_bytes == 8 * (1024 * 1024 + 1024) * 4 // 2  # each rank holds half
    changes = {change.kind: change for change in job_changes(base.survey, script)}
    assert set(changes) == {"sharding", "host"}
    freed, on_host = attempts.run([(changes["sharding"],), (changes["host"],)])
    assert freed.allocated_bytes() < base.allocated_bytes() - 4 * MiB
    assert on_host.allocated_bytes() < base.allocated_bytes() - 4 * MiB


@pytest.mark.long
def test_the_losses_of_real_ranks_stay_what_they_were(tmp_path: Path) -> None:
    text = (PROGRAMS / "jobs" / "losses.py").read_text()
    seen = of_ddp(text)
    seen.models[0] = replace(seen.models[0], blocks=[""])
    again = recomputing_change(seen, Recomputation(["0", "1"], GiB, 0.1), GiB)
    parts = next(iter(batch_changes(seen, ScriptText.of(text))))
    model, state, views = (
        change_of(seen, text, part) for part in ("FSDP2", "ZeroRedundancyOptimizer", "buckets")
    )
    expected = losses(tmp_path / "as_it_is.py", text)
    assert len(expected) == 6
    for number, changes in enumerate([[model, again, parts], [state, views, again, parts]]):
        found = losses(tmp_path / f"changed_{number}.py", made(changes, text))
        assert found == pytest.approx(expected, rel=1e-5)


def losses(path: Path, text: str) -> list[float]:
    """Runs two ranks on the CPU, without plimsoll. Returns their losses."""
    path.write_text(text)
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = subprocess.run(
        [sys.executable, *launch, path], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return [float(line) for line in done.stdout.split()]


def test_a_module_that_is_not_there_is_refused_in_one_line() -> None:
    done = run_plimsoll("fit", "--nproc-per-node", "2", "-m", "package.train", seconds=60)
    assert done.returncode == 2
    assert "there is no module package" in done.stderr
    assert len(done.stderr.splitlines()) == 1
