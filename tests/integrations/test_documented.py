"""Tests that every block of docs/integrations.md runs, and that its shown output is real."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.integrations.needed import needs
from tests.integrations.test_notebook import execute, shown
from tests.recordings import ROOT
from tests.simulated import output_of
from tests.snippets import FENCED

if TYPE_CHECKING:
    from pathlib import Path

PAGE = (ROOT / "docs" / "integrations.md").read_text()
BLOCKS = {
    section.partition("\n")[0]: [(language, code) for _, language, code in FENCED.findall(section)]
    for section in PAGE.split("\n## ")[1:]
}

LOOP = """
import torch

batches = [torch.ones(1 << 20), torch.ones(1 << 21)]

def train(batch):
    return float(batch.cuda().numel())
"""
SCALARS = """
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator("{folder}").Reload()
assert [one.step for one in events.Scalars("gpu0_memory/peak_allocated_gib")] == [0, 1]
"""
TRAINERS = """
import torch
from tests.integrations import test_trainers
"""
RECORDED = """
import plimsoll
assert plimsoll.explain("run.plim", advice=False).steps.source == "marks"
"""
AROUND = {
    "Hugging Face's Trainer": (
        TRAINERS
        + "from transformers import Trainer\ngiven = test_trainers.hugging_face_trainer(8)\n"
        "model, arguments, dataset = given.model, given.args, given.train_dataset\n",
        RECORDED + "assert 'gpu0_memory/headroom_gib' in trainer.state.log_history[0]\n",
    ),
    "Lightning": (
        TRAINERS + "from lightning import Trainer\nmodule = test_trainers.lightning_module()\n"
        "loader = test_trainers.loader(8)\n",
        RECORDED,
    ),
    "Weights & Biases": (
        "import os\nos.environ |= {'WANDB_MODE': 'offline', 'WANDB_SILENT': 'true'}\n"
        "import wandb\n" + LOOP,
        "wandb.teardown()\nfrom pathlib import Path\n"
        "from tests.integrations.test_trackers import rows_of_wandb\n"
        "rows = rows_of_wandb(Path('wandb'))\n"
        "assert [{'loss', 'gpu0_memory/headroom_gib'} <= set(row) for row in rows] == [True] * 2\n",
    ),
    "TensorBoard": (
        "from torch.utils.tensorboard import SummaryWriter\n" + LOOP,
        SCALARS.format(folder="logs"),
    ),
    "Accelerate": (
        "from accelerate import Accelerator\n" + LOOP,
        SCALARS.format(folder="logs/run"),
    ),
    "Prometheus": (
        LOOP + "train(batches[0])\nimport plimsoll\nimport urllib.request\n",
        "with urllib.request.urlopen('http://127.0.0.1:9400/metrics') as answer:\n"
        "    assert b'plimsoll_peak_allocated_bytes' in answer.read()\nserver.close()\n",
    ),
}
"""For each section of the page: the code to run before its block, and the checks to run after."""
ELSEWHERE = {"Notebooks", "pytest", "GitHub"}


def test_every_section_is_known() -> None:
    assert set(BLOCKS) == set(AROUND) | ELSEWHERE


@needs("transformers", "accelerate", "lightning", "wandb", "tensorboard", "prometheus_client")
@pytest.mark.parametrize("section", AROUND)
def test_a_block_runs(section: str) -> None:
    ((language, code),) = BLOCKS[section]
    assert language == "python"
    before, after = AROUND[section]
    output_of(before + code + after)


@needs("nbclient", "ipykernel")
def test_the_notebook_shows_what_is_shown(tmp_path: Path) -> None:
    (_, load), (_, cell), (_, output) = BLOCKS["Notebooks"]
    sources = [load, "import torch", cell]
    printed = output_of(execute, arguments=[sources], folder=tmp_path)
    cells: list[list[Any]] = json.loads(printed.splitlines()[-1])
    assert shown(cells[2]) == output.rstrip("\n")


@pytest.mark.long
@needs("torch")
def test_the_test_fails_as_is_shown(tmp_path: Path) -> None:
    (_, code), (_, output) = BLOCKS["pytest"]
    (tmp_path / "test_layer.py").write_text(f"import pytest\nimport torch\n\n\n{code}")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert output in done.stdout


@needs("yaml")
def test_the_workflow_gives_what_the_action_takes() -> None:
    import yaml

    ((_, code),) = BLOCKS["GitHub"]
    steps = yaml.safe_load(code)["jobs"]["memory"]["steps"]
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    (given,) = (step["with"] for step in steps if "plimsoll" in step.get("uses", ""))
    assert set(given) <= set(action["inputs"])
    assert {name for name, one in action["inputs"].items() if one.get("required")} <= set(given)


def test_every_extra_is_named() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    brought = set(project["optional-dependencies"]) - {"test", "torch"}
    introduction = PAGE.split("\n\n")[1]
    assert {name for name in brought if f"`{name}`" not in introduction} == set()
