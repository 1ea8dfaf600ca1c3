"""Tests the examples of docs/json.md, which check whether a job fits a card before the job runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.apart import ROOT
from tests.pages import BLOCK

pytest.importorskip("torch")
PAGE = (ROOT / "docs/json.md").read_text()
TRAIN = """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--gib", "--batch-size", type=float, default=1)
options = parser.parse_args()
if options.gib < 0: raise SystemExit("no such size")
torch.empty(int(options.gib * 2**30), dtype=torch.uint8, device="cuda")
"""


def example(name: str) -> str:
    """Returns the page's example that has this title."""
    (found,) = [block["text"] for block in BLOCK.finditer(PAGE) if block["title"] == name]
    return str(found)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes a folder with a script, the examples, and an `sbatch` that prints its arguments."""
    (tmp_path / "train.py").write_text(TRAIN)
    sbatch = '#!/bin/sh\nprintf "submitted"; for each; do printf " [%s]" "$each"; done\n'
    commands = {
        "sbatch": sbatch,
        **{each: example(each) for each in ("sbatch-checked", "check-memory")},
    }
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in commands.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    path = [str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]
    monkeypatch.setenv("PATH", os.pathsep.join(path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.usefixtures("place")
def test_slurm_is_given_what_fits_and_nothing_else() -> None:
    fits = run("sbatch-checked", "L4", "job.sh", "train.py", "--gib", "2")
    assert fits.returncode == 0, fits.stderr
    mark = "[--nodes=1] [--gpus-per-node=1] [--comment=plimsoll:0]"
    assert fits.stdout == f"submitted {mark} [job.sh] [train.py] [--gib] [2]"
    assert fits.stderr.splitlines()[0].startswith("train.py fits on L4: ")
    assert len(fits.stderr.splitlines()) == 3, "the verdict, why, and what next"
    fails = run("sbatch-checked", "L4", "job.sh", "train.py", "--gib", "30")
    assert (fails.returncode, fails.stdout) == (1, "")
    assert "train.py does not fit on L4" in fails.stderr
    assert fails.stderr.endswith("sbatch-checked: job.sh is not submitted\n")


def test_a_job_with_several_gpus_is_predicted_and_submitted_in_its_shape(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUS", "2")
    (place / "ranks.py").write_text(
        "import os, torch\nassert os.environ['WORLD_SIZE'] == '2'\n"
        "rank = int(os.environ['LOCAL_RANK'])\n"
        "torch.empty(1 << 30, dtype=torch.uint8, device=f'cuda:{rank}')\n"
    )
    fits = run("sbatch-checked", "L4", "job.sh", "ranks.py")
    mark = "[--nodes=1] [--gpus-per-node=2] [--comment=plimsoll:0]"
    assert fits.stdout == f"submitted {mark} [job.sh] [ranks.py]", fits.stderr
    assert "ranks.py fits on L4: 2 of 2 ranks" in fits.stderr


def test_the_job_starts_torchrun_once_a_node(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": "7"}
    for name, value in {**names, "SLURM_GPUS_ON_NODE": "8"}.items():
        monkeypatch.setenv(name, value)
    (place / "bin/scontrol").write_text("#!/bin/sh\necho n1\necho n2\n")
    (place / "bin/srun").write_text('#!/bin/sh\necho "$@"\n')
    for each in ("scontrol", "srun"):
        (place / "bin" / each).chmod(0o755)
    (place / "job.sh").write_text(example("job.sh"))
    assert run("sh", "job.sh", "train.py", "--batch-size", "8").stdout == (
        "torchrun --nnodes 2 --nproc-per-node 8 --rdzv-id 7 --rdzv-backend c10d "
        "--rdzv-endpoint n1:29500 train.py --batch-size 8\n"
    )


@pytest.mark.usefixtures("place")
def test_the_operator_says_what_becomes_of_a_job_that_could_not_be_predicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passed = run("sbatch-checked", "L4", "job.sh", "train.py", "--gib", "-1")
    assert passed.returncode == 0
    assert passed.stdout.startswith(
        "submitted [--nodes=1] [--gpus-per-node=1] [--comment=plimsoll:2]"
    )
    assert "not known whether train.py fits; submitted all the same" in passed.stderr
    monkeypatch.setenv("IF_UNKNOWN", "refuse")
    refused = run("sbatch-checked", "L4", "job.sh", "train.py", "--gib", "-1")
    assert (refused.returncode, refused.stdout) == (2, "")


LUA = next((each for each in ("lua", "lua5.4", "lua5.3", "luajit") if shutil.which(each)), None)


@pytest.mark.skipif(LUA is None, reason="there is no Lua")
@pytest.mark.parametrize(
    ("job", "answer"),
    [
        ('{tres_per_job = "gres/gpu:1"}', "-1"),
        ('{tres_per_node = "gres/gpu:a100:2", comment = "mine"}', "-1"),
        ('{tres_per_job = "gres/gpu:1", comment = "plimsoll:0"}', "0"),
        ("{}", "0"),
    ],
)
def test_slurm_refuses_jobs_for_gpus_without_the_mark(
    job: str, answer: str, tmp_path: Path
) -> None:
    script = tmp_path / "try.lua"
    known = "slurm = {ERROR = -1, SUCCESS = 0, log_user = function() end}\n"
    asked = f"print(slurm_job_submit({job}, nil, 0))\n"
    script.write_text(known + example("job_submit.lua") + asked)
    assert LUA is not None
    assert run(LUA, str(script)).stdout == f"{answer}\n"


@pytest.mark.long
def test_the_init_container_ends_as_the_prediction_does(place: Path) -> None:
    job = yaml.safe_load(example("train.yaml"))
    pod = job["spec"]["template"]["spec"]
    (asks,), (trains,) = pod["initContainers"], pod["containers"]
    assert "resources" not in asks
    assert trains["resources"]["limits"] == {"nvidia.com/gpu": 1}
    # Both containers run the same script with the same arguments.
    script = asks["command"].index("train.py")
    assert [each for each in asks["command"][script:] if each != "--"] == trains["command"][1:]
    assert run(*asks["command"]).returncode == 0
    (place / "train.py").write_text(TRAIN.replace("* 2**30", "* 2**33"))
    assert run(*asks["command"]).returncode == 1


@pytest.mark.long
def test_the_check_of_ci_holds_a_script_against_its_share(place: Path) -> None:
    fits = run("check-memory", "4", "train.py", "--gib", "2")
    assert fits.returncode == 0, fits.stderr
    assert re.fullmatch(r"train\.py needs 2\.\d\d GiB of 4\.00 GiB\n", fits.stdout)
    assert json.loads((place / "prediction.json").read_text())["schema"] == 2
    assert run("check-memory", "1.5", "train.py", "--gib", "2").returncode == 1
    assert run("check-memory", "99", "train.py", "--gib", "90").returncode == 1
    assert run("check-memory", "99", "train.py", "--gib", "-1").returncode == 2


def test_the_page_says_where_the_schema_is() -> None:
    (command,) = [
        b["text"] for b in BLOCK.finditer(PAGE) if b["language"] == "sh" and "schema" in b["text"]
    ]
    found = run("sh", "-c", command.replace("python", sys.executable, 1))
    schema = json.loads(Path(found.stdout.strip()).read_text())
    assert schema["$schema"].startswith("https://json-schema.org/draft/2020-12")


def test_the_page_lists_the_exit_statuses_that_commands_name() -> None:
    from plimsoll.cli import app, terminal

    rows = re.findall(r"^\| (\d+) \|", PAGE, re.M)
    assert rows == ["0", "1", "2", "3", "130", "143"]
    assert terminal.NOT_KNOWN == 3
    assert "0 done; 1 the answer is no" in str(app.app.info.epilog)
