"""Tests which graphs plimsoll says that no backward pass uses, and at which lines."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from plimsoll.explanation.explain import explain
from plimsoll.prediction.fitting.changes.of_causes import cause_changes
from plimsoll.prediction.fitting.script_text import ScriptText
from plimsoll.prediction.predict import predict
from plimsoll.prediction.survey import Survey
from plimsoll.recordings.causes.wording import first_and_last
from tests.simulated import PROGRAMS, simulate

if TYPE_CHECKING:
    from plimsoll.explanation.explanation import Explanation

pytest.importorskip("torch")

IN_TRAINING = PROGRAMS / "causes" / "evaluation_in_training.py"
HEAD = """\
import torch
from torch import nn
import torch.nn.functional as F
def net():
    wide = [nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(4)]
    return nn.Sequential(*wide, nn.Linear(256, 10)).cuda()
def batch(n=1024):
    return torch.randn(n, 256, device="cuda"), torch.randint(10, (n,), device="cuda")
model = net()
optimizer = torch.optim.Adam(model.parameters())
def train(steps):
    for _ in range(steps):
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
"""
UNUSED = {
    "a list comprehension at the end": """
        train(6)
        model.eval()
        outs = torch.cat([model(batch()[0]) for _ in range(4)])  # here
    """,
    "a list in a function, each epoch": """
        def evaluate():
            outs = []
            for _ in range(4):
                outs.append(model(batch()[0]))  # here
            return torch.cat(outs).argmax(1).float().mean().item()
        for _ in range(3):
            train(6)
            evaluate()
    """,
    "a list that is extended": """
        train(6)
        outs = []
        for _ in range(4):
            outs += [model(batch()[0])]  # here
    """,
    "a sum of losses between two steps": """
        train(6)
        total = 0
        for _ in range(6):
            x, y = batch()
            total = total + F.cross_entropy(model(x), y)  # here
        train(3)
    """,
    "a dictionary that an object keeps over epochs": """
        class Results:
            best = {}
        def evaluate(epoch):
            outs = {}
            for i in range(3):
                outs[i] = model(batch()[0])  # here
            Results.best[epoch] = outs
        for epoch in range(3):
            train(6)
            evaluate(epoch)
    """,
    "a function that also trains": """
        def run(steps, trains):
            outs = []
            for _ in range(steps):
                x, y = batch()
                out = model(x)
                if trains:
                    optimizer.zero_grad()
                    F.cross_entropy(out, y).backward()
                    optimizer.step()
                outs.append(out)
            return outs
        for _ in range(3):
            run(6, True)
            run(5, False)  # here
    """,
}
USED = {
    "a later backward pass": """
        for _ in range(6):
            outs = [model(batch()[0]) for _ in range(4)]
            optimizer.zero_grad()
            torch.cat(outs).square().mean().backward()
            optimizer.step()
    """,
    "a sum over several batches": """
        for _ in range(6):
            optimizer.zero_grad()
            total = 0
            for _ in range(4):
                x, y = batch()
                total = total + F.cross_entropy(model(x), y) / 4
            total.backward()
            optimizer.step()
    """,
    "steps through time": """
        cell = nn.GRUCell(256, 512).cuda()
        for _ in range(6):
            h, loss = torch.zeros(1024, 512, device="cuda"), 0
            for _ in range(12):
                h = cell(batch()[0], h)
                loss = loss + h.square().mean()
            loss.backward()
            optimizer.step()
    """,
    "a generator whose result is also detached": """
        critic = nn.Sequential(nn.Linear(10, 1024), nn.ReLU(), nn.Linear(1024, 1)).cuda()
        of_critic = torch.optim.Adam(critic.parameters())
        for _ in range(8):
            fake = model(batch()[0])
            of_critic.zero_grad()
            F.softplus(critic(fake.detach())).mean().backward()
            of_critic.step()
            optimizer.zero_grad()
            F.softplus(-critic(fake)).mean().backward()
            optimizer.step()
    """,
    "gradients of gradients": """
        for _ in range(6):
            x = batch()[0].requires_grad_()
            out = model(x)
            (g,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            optimizer.zero_grad()
            (out.mean() + ((g.norm(2, 1) - 1) ** 2).mean()).backward()
            optimizer.step()
    """,
    "graphs that are retained": """
        other = net()
        for _ in range(8):
            x, y = batch()
            one, two = F.cross_entropy(model(x), y), F.cross_entropy(other(x), y)
            one.backward(retain_graph=True)
            two.backward(retain_graph=True)
            optimizer.step()
    """,
    "a teacher that is frozen": """
        teacher = net().requires_grad_(False)
        for _ in range(8):
            x, _ = batch()
            target = teacher(x)
            optimizer.zero_grad()
            F.mse_loss(model(x), target).backward()
            optimizer.step()
    """,
    "an evaluation under no_grad": """
        train(6)
        with torch.no_grad():
            outs = torch.cat([model(batch()[0]) for _ in range(4)])
        train(6)
    """,
}


def explained(folder: Path, body: str) -> Explanation:
    """Returns the explanation of a recording of HEAD and a program, without trials."""
    script = folder / "program.py"
    script.write_text(HEAD + dedent(body))
    simulate(script, "--record", str(folder / "run.plim"))
    return explain(folder / "run.plim", search_events=0)


@pytest.mark.parametrize("name", UNUSED)
def test_graphs_of_an_evaluation_are_unused(name: str, tmp_path: Path) -> None:
    found = explained(tmp_path, UNUSED[name])
    cause, lines = found.causes[0], (HEAD + dedent(UNUSED[name])).splitlines()
    number = 1 + next(i for i, line in enumerate(lines) if line.endswith("# here"))
    place = first_and_last(cause.line)
    assert place is not None
    assert place[0].endswith("program.py")
    assert number in range(place[1], place[2] + 1)
    assert "for a backward pass that never runs" in cause.sentence
    assert cause.patch == "with torch.no_grad():"
    assert cause.bytes > 0.3 * found.peak.allocated_bytes


@pytest.mark.parametrize("name", USED)
def test_graphs_that_a_backward_pass_uses_are_not_called_unused(name: str, tmp_path: Path) -> None:
    found = explained(tmp_path, USED[name])
    assert not [cause for cause in found.causes if "never runs" in cause.sentence]
    assert "no_grad" not in str(found)


def test_where_training_runs_the_same_lines_no_change_is_tried(tmp_path: Path) -> None:
    found = explained(
        tmp_path,
        """
        for _ in range(3):
            for phase in "train", "val":
                outs = []
                for _ in range(6):
                    x, y = batch()
                    out = model(x)
                    if phase == "train":
                        optimizer.zero_grad()
                        F.cross_entropy(out, y).backward()
                        optimizer.step()
                    outs.append(out)
        """,
    )
    cause = found.causes[0]
    assert cause.name == "unused_activations"
    assert "that other passes of its loop run, and these do not" in cause.sentence
    assert cause.patch == ""


def test_an_evaluation_comes_before_what_grows_a_little_and_each_has_its_own_lines() -> None:
    found = predict(IN_TRAINING, ["fault"])
    unused, grows = found.causes
    assert (unused.name, grows.name) == ("unused_activations", "kept_over_passes")
    assert "evaluation_in_training.py:28-30 keep " in unused.sentence
    assert "evaluation_in_training.py:23 keeps 1.00 MiB more with each pass" in grows.sentence
    assert "made at " in grows.sentence
    assert grows.patch == "bank.append(z.detach().cpu())"
    assert grows.bytes < 20 * grows.growth_bytes
    lines = str(found).splitlines()
    assert lines[1].startswith(f"Why: {unused.sentence}")
    assert lines[2] == "Try: with torch.no_grad():"
    assert lines[3].startswith(f"Also: {grows.sentence}")


def test_the_report_of_a_recording_names_the_same_causes(tmp_path: Path) -> None:
    recording = tmp_path / "run.plim"
    simulate(IN_TRAINING, "--record", str(recording), arguments=["fault"])
    found = explain(recording, search_events=0)
    unused, grows = found.causes
    lines = str(found).splitlines()
    assert not lines[0].startswith("The program leaks")
    assert lines[1].startswith(f"Why: {unused.sentence}")
    assert any(line.startswith(f"Also: {grows.sentence}") for line in lines[:5])
    assert grows.bytes in [leak.grown_bytes for leak in found.leaks]


def test_all_lines_of_an_evaluation_are_put_under_no_grad() -> None:
    text = ScriptText.read(IN_TRAINING)
    causes = predict(IN_TRAINING, ["fault"]).causes[:1]
    (change,) = cause_changes(Survey(causes=causes))
    changed = change.edit(text)
    lines = [line.strip() for line in changed.lines]
    begin = lines.index("with torch.no_grad():")
    starts = [line.split(" = ")[0] for line in lines[begin + 1 : begin + 4]]
    assert starts == ["first", "z", "scores"]
