"""Tests that each line that a command prints matches exactly one kind in the `--json` schema."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.apart import ROOT
from tests.output_lines import check_output, kinds_of
from tests.output_schema import make_schema
from tests.small_engine import install_small_engine

pytest.importorskip("torch")
pytest.importorskip("jsonschema")
RECORDING = str(ROOT / "examples/recordings/gpt2_adamw_oom.pickle.gz")
ACCOUNT = "account.jsonl"
SCRIPT = """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
options = parser.parse_args()
model = torch.nn.Linear(1 << 12, 1 << 12).cuda()
optimizer = torch.optim.SGD(model.parameters())
for _ in range(4):
    model(torch.ones(options.batch_size << 10, 1 << 12, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
COMMANDS = {
    "predict": ("predict", "train.py", "--json"),
    "predict_check": ("predict", "train.py", "--check", "run.plim", "--json"),
    "fit": ("fit", "train.py", "--vary=--batch-size", "--at-most", "9", "--json"),
    "fit_serving": ("fit", "--gpu", "L4", "--json", "vllm", "serve", "small"),
    "fit_within": ("fit", "--within", "900MiB", "train.py", "--json"),
    "sweep": ("sweep", "train.py", "--vary=gpu=L4,H100", "--json"),
    "explain": ("explain", "run.plim", "--json"),
    "explain_ranks": ("explain", "ranks", "--json"),
    "replay": ("replay", RECORDING, "--json"),
    "view": ("view", "run.plim", "--json"),
    "view_ranks": ("view", "ranks", "--json"),
    "view_export": ("view", "run.plim", "--export", "perfetto", "--json"),
    "view_serve": ("view", "run.plim", "--serve", "--json"),
    "top": ("top", "--json"),
    "top_hosts": ("top", "--host", "nobody.invalid", "--json"),
    "gpus": ("gpus", "4090", "--json"),
    "doctor": ("doctor", "--json"),
    "run": ("run", "--simulate", "L4", "--json", ACCOUNT, "train.py"),
}
SLOW = ("fit_serving", "fit_within")


def test_every_kind_has_a_command() -> None:
    kinds = [branch["$ref"].rpartition("/")[2] for branch in make_schema()["oneOf"]]
    assert list(COMMANDS) == kinds


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes a folder with a script, a recording of it, and a folder of a job's recordings."""
    folder = tmp_path_factory.mktemp("kinds")
    (folder / "train.py").write_text(SCRIPT)
    run = ("run", "--simulate", "L4", "--record", "run.plim", "train.py")
    subprocess.run([sys.executable, "-m", "plimsoll", *run], cwd=folder, check=True)
    install_small_engine(folder)
    (folder / "ranks").mkdir()
    for rank in range(2):
        shutil.copy(folder / "run.plim", folder / "ranks" / f"rank{rank}.plim")
    return folder


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.long if kind in SLOW else ()) for kind in COMMANDS],
)
def test_each_line_of_a_command_is_of_its_kind_alone(kind: str, place: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "plimsoll", *COMMANDS[kind]], cwd=place,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(place / "packages")},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        first = process.stdout.readline()
        if kind == "view_serve":
            process.send_signal(signal.SIGINT)
        told, errors = process.communicate()
    lines = [first, *told.splitlines()]
    if kind == "run":
        assert lines == [""]
        lines = (place / ACCOUNT).read_text().splitlines()
    assert lines, errors
    for line in lines:
        assert json.loads(line)["schema"] == 2
        check_output(line.strip())
        assert kinds_of(line) == [kind]
