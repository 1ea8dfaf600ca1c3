"""Tests that --steps ends training loops early, and that the rest of the script runs."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from plimsoll.base.errors import InputError
from plimsoll.base.units import MiB
from plimsoll.cli.app import app
from plimsoll.prediction.child import heartbeat
from plimsoll.prediction.child.fewer_steps import StepLimit
from plimsoll.prediction.predict import predict
from plimsoll.prediction.results import Prediction

pytest.importorskip("torch")
from torch.utils.data import DataLoader

SETUP = """
    import sys
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    model = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters())
    rows = TensorDataset(torch.randn(80, 64))
    loader = DataLoader(rows, batch_size=2)
    held_out = DataLoader(rows, batch_size=8)

    def step(x):
        model(x.cuda()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
EPOCHS = """
    def train():
        rounds = 0
        for i, (x,) in enumerate(loader):
            step(x)
            rounds += 1
        return 1 / rounds

    for epoch in range(3):
        train()
        for (x,) in held_out:
            model(x.cuda())
    after = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
"""


def predicted(folder: Path, text: str, steps: int | None, **options: Any) -> Prediction:
    script = folder / "script.py"
    script.write_text(dedent(SETUP) + dedent(text))
    return predict(script, steps=steps, **options)


def test_a_loop_over_a_loader_ends_and_the_rest_of_the_script_runs(tmp_path: Path) -> None:
    found = predicted(tmp_path, EPOCHS, 5)
    assert found.fewer_steps is not None
    assert found.fewer_steps.has_ended
    assert found.fewer_steps.planned == 120
    # After the limit, each epoch still makes one step. Otherwise `1 / rounds` would fail.
    assert found.fewer_steps.made == len(found.step_peaks_bytes) == 7
    whole = predicted(tmp_path, EPOCHS, None)
    assert whole.fewer_steps is None
    assert len(whole.step_peaks_bytes) == 120
    assert found.peak_allocated_bytes == whole.peak_allocated_bytes >= 256 * MiB
    assert found.peak_reserved_bytes == whole.peak_reserved_bytes
    assert "7 of about 120 steps" in str(found)
    assert "--steps" not in str(whole)


def test_an_evaluation_after_each_step_is_no_part_of_the_step(tmp_path: Path) -> None:
    text = """
        for (x,) in loader:
            step(x)
            for (y,) in held_out:
                model(y.cuda())
    """
    found = predicted(tmp_path, text, 4).step
    assert found is not None
    assert found.samples_per_second == pytest.approx(2 / found.seconds)
    assert found.lines
    evaluates = (tmp_path / "script.py").read_text().splitlines().index(
        "        model(y.cuda())"
    ) + 1
    assert not any(line.line.endswith(f":{evaluates}") for line in found.lines)


@pytest.mark.long
def test_json_has_the_reason_and_the_next_command(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(dedent(SETUP) + "for (x,) in loader: step(x)\n")
    command = ["predict", "--json", "--gpu", "T4", "--steps", "3", str(script)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert found["why"].startswith("the largest part of the peak is workspaces, ")
    assert found["next"] == f"plimsoll run --record run.plim {script}"
    assert found["fewer_steps"] == {"at_most": 3, "made": 3, "planned": 40, "has_ended": True}
    done = CliRunner().invoke(app, [*command[:-1], "--dedicated", "8MiB", command[-1]])
    assert done.exit_code == 1
    assert json.loads(done.stdout)["next"] == f"plimsoll fit {script} --gpu T4 --steps 3"


def test_parts_of_a_step_are_not_cut(tmp_path: Path) -> None:
    loop = """
    for epoch in range(2):
        for i, (x,) in enumerate(loader):
            model(x.cuda()).sum().backward()
            if (i + 1) % 4 == 0:
                optimizer.step()
    """
    found = predicted(tmp_path, loop, 3)
    assert found.fewer_steps is not None
    assert found.fewer_steps.made == 3 + 1


@pytest.mark.long
def test_a_loop_that_counts_its_steps_ends_as_it_always_does(tmp_path: Path) -> None:
    loop = """
    made = 0
    while made < 12:
        for (x,) in loader:
            step(x)
            made += 1
            if made == 12:
                break
    """
    found = predicted(tmp_path, loop, 5)
    assert len(found.step_peaks_bytes) == 12
    assert found.fits


@pytest.mark.long
def test_workers_that_persist_serve_the_next_epoch(tmp_path: Path) -> None:
    loop = """
    loader = DataLoader(rows, batch_size=2, num_workers=2, persistent_workers=True)
    for epoch in range(3):
        for (x,) in loader:
            step(x)
    """
    found = predicted(tmp_path, loop, 4)
    assert len(found.step_peaks_bytes) == 6


@pytest.mark.parametrize(
    "loop",
    [
        "for i in range(9): step(torch.randn(2, 64))",
        pytest.param(
            "batches = iter(loader)\nfor i in range(9): step(next(batches)[0])",
            marks=pytest.mark.long,
        ),
    ],
)
def test_another_loop_runs_on_and_the_answer_says_so(
    tmp_path: Path, loop: str, capfd: pytest.CaptureFixture[str]
) -> None:
    told = "print('step', i, file=sys.stderr, flush=True)"
    found = predicted(tmp_path, f"{loop}; {told}", 4)
    assert found.fewer_steps is not None
    assert not found.fewer_steps.has_ended
    assert len(found.step_peaks_bytes) == 9
    assert "--steps 4 ended no training loop" in str(found)
    lines = capfd.readouterr().err.splitlines()
    (early,) = [line for line in lines if "--steps 4 does not end the loop around" in line]
    assert "all 9 steps run" in early
    assert lines.index("step 0") < lines.index(early) < lines.index("step 2")


def test_progress_offers_steps_where_it_would_end_the_loop() -> None:
    loader = DataLoader(range(3))
    allocator = SimpleNamespace(
        max_memory_reserved=lambda: MiB, engine=SimpleNamespace(history_size=3)
    )
    simulation: Any = SimpleNamespace(runners=(), allocators=[allocator])
    clock = SimpleNamespace(pace=lambda: None)

    def progress(limit: StepLimit) -> str:
        labels: Any = SimpleNamespace(step_clock=clock, step_limit=limit)
        return heartbeat._text(simulation, labels, 10.0)

    in_loader, in_range, given = (StepLimit(simulation, steps) for steps in (None, None, 9))
    for done, _ in enumerate(loader):
        in_loader.end_step(done + 1)
        given.end_step(done + 1)
    for done in range(3):
        in_range.end_step(done + 1)
    assert progress(in_loader).endswith("; Ctrl-C gives the answer so far, --steps N a shorter run")
    assert progress(in_range).endswith("; Ctrl-C gives the answer so far")
    assert progress(given).endswith("; Ctrl-C gives the answer so far")


@pytest.mark.long
def test_a_shorter_loop_is_left_alone(tmp_path: Path) -> None:
    assert predicted(tmp_path, "for (x,) in loader: step(x)", 40).fewer_steps is None
    assert predicted(tmp_path, "for (x,) in loader: step(x)", 400).fewer_steps is None


def test_no_steps_are_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least 1 step must be made, not 0"):
        predicted(tmp_path, "", 0)


@pytest.mark.long
def test_a_trainer_evaluates_and_saves_half_way(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    pytest.importorskip("transformers")
    loop = f"""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model
        def forward(self, x, labels=None):
            y = self.inner(x)
            return {{"loss": y.sum(), "logits": y}}

    class Told(TrainerCallback):
        def on_evaluate(self, args, state, control, **_):
            # What only an evaluation takes, after the second step.
            torch.empty(256 << 20, dtype=torch.uint8, device="cuda")

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 400
        def __getitem__(self, i):
            return {{"x": torch.zeros(64), "labels": 0}}

    trainer = Trainer(
        Model(),
        TrainingArguments(
            {str(tmp_path / "out")!r}, per_device_train_batch_size=2, max_steps=100,
            eval_strategy="steps", eval_steps=50, save_steps=50, report_to="none",
        ),
        train_dataset=Rows(), eval_dataset=Rows(), callbacks=[Told()],
    )
    trainer.train()
    assert trainer.state.global_step in (4, 100)
    """
    found = predicted(tmp_path, loop, 4)
    assert found.fewer_steps is not None
    assert (found.fewer_steps.made, found.fewer_steps.planned) == (4, 100)
    assert max(found.step_peaks_bytes) >= 256 * MiB > found.step_peaks_bytes[0]
    assert {"checkpoint-2", "checkpoint-4"} <= {Path(one.path).parent.name for one in found.written}
    whole = predicted(tmp_path, loop, None)
    assert len(whole.step_peaks_bytes) == 100
    assert found.peak_reserved_bytes == whole.peak_reserved_bytes
