"""The steps of the GitHub Action, run as a runner does, where a branch takes more memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.recordings import ROOT

yaml = pytest.importorskip("yaml")
pytest.importorskip("torch")

SCRIPT = """
import torch

def held(count):
    return torch.zeros(count << 18, device="cuda")

tensor = held({mib})
"""
GH = """#!/usr/bin/env python3
import json, pathlib, sys
with open("{calls}", "a") as file:
    print(json.dumps(sys.argv[1:]), file=file)
if "--jq" in sys.argv:
    print({own})
sys.exit({status})
"""


class Runner:
    """What a runner gives to the steps of a composite action."""

    def __init__(self, folder: Path, *, own_comment: str = '""', gh_status: int = 0) -> None:
        self.repository, self.temporary = folder / "repository", folder / "temporary"
        tools = folder / "tools"
        for each in (self.repository, self.temporary, tools):
            each.mkdir()
        self.calls = folder / "calls"
        (tools / "gh").write_text(GH.format(calls=self.calls, own=own_comment, status=gh_status))
        (tools / "gh").chmod(0o755)
        self.summary, self.outputs = folder / "summary", folder / "outputs"
        python = Path(sys.executable).parent
        self.environment = {
            **os.environ,
            "PATH": f"{tools}:{python}:{os.environ['PATH']}",
            "GITHUB_ACTION_PATH": str(ROOT),
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "GITHUB_OUTPUT": str(self.outputs),
            "RUNNER_TEMP": str(self.temporary),
        }

    def commit(self, mib: int) -> str:
        """A commit of the script; its name."""
        (self.repository / "train.py").write_text(SCRIPT.format(mib=mib))
        self.git("add", ".")
        self.git("-c", "user.name=me", "-c", "user.email=me@here", "commit", "-q", "-m", "change")
        return self.git("rev-parse", "HEAD").strip()

    def git(self, *arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=self.repository, check=True, capture_output=True, text=True
        ).stdout

    def step(self, name: str, inputs: dict[str, str]) -> subprocess.CompletedProcess[str]:
        """Run one step of action.yml."""
        steps: list[dict[str, Any]] = yaml.safe_load((ROOT / "action.yml").read_text())["runs"][
            "steps"
        ]
        (step,) = (one for one in steps if one["name"] == name)
        known = {f"inputs.{key}": value for key, value in inputs.items()}
        known |= {"github.repository": "me/mine", "github.event.pull_request.number": "7"}
        if self.outputs.exists():
            key, value = self.outputs.read_text().strip().split("=")
            known[f"steps.predict.outputs.{key}"] = value

        def filled(text: str) -> str:
            for key, value in known.items():
                text = text.replace("${{ " + key + " }}", value)
            assert "${{" not in text
            return text

        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", filled(step["run"])],
            cwd=self.repository, capture_output=True, text=True, check=False,
            env=self.environment | {key: filled(text) for key, text in step.get("env", {}).items()},
        )  # fmt: skip

    def posted(self) -> list[list[str]]:
        """What `gh` was called with, but for looking for the comment."""
        calls = [json.loads(line) for line in self.calls.read_text().splitlines()]
        return [call for call in calls if "--jq" not in call]


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def inputs(base: str, may_grow: str) -> dict[str, str]:
    return {
        "scripts": "train.py --epochs 1\n\n", "gpu": "T4", "may-grow": may_grow, "base": base,
        "token": "secret",
    }  # fmt: skip


@pytest.mark.long
def test_the_comment_says_what_a_change_takes_and_fails_the_check(runner: Runner) -> None:
    runner.git("init", "-q", "-b", "main")
    runner.git("remote", "add", "origin", ".")
    base = runner.commit(512)
    runner.git("checkout", "-q", "-b", "change")
    runner.commit(1024)
    asked = inputs(base, "10%")
    done = runner.step("Predict", asked)
    assert done.returncode == 0, done.stderr
    summary = runner.summary.read_text()
    mark, answer = summary.splitlines()[:2]
    assert mark.startswith("<!--")
    assert answer == "### GPU memory: +512.00 MiB at the peak of `train.py --epochs 1`"
    assert "| train.py held | 512.00 MiB | 1.00 GiB | +512.00 MiB |" in summary
    assert runner.git("worktree", "list").count("\n") == 1
    assert runner.git("status", "--porcelain") == ""

    done = runner.step("Comment", asked)
    assert done.returncode == 0, done.stderr
    (call,) = runner.posted()
    assert call[:3] == ["api", "--silent", "repos/me/mine/issues/7/comments"]
    assert call[-1] == f"body=@{runner.temporary}/plimsoll.md"
    assert runner.step("Verdict", asked).returncode == 1


@pytest.mark.parametrize(
    ("own", "status", "said"),
    [(41, 0, ""), ('""', 1, "::warning::plimsoll may not comment here")],
)
def test_an_earlier_comment_is_replaced_and_a_refusal_is_a_warning(
    own: object, status: int, said: str, tmp_path: Path
) -> None:
    runner = Runner(tmp_path, own_comment=str(own), gh_status=status)
    (runner.temporary / "plimsoll.md").write_text("<!-- plimsoll -->\n")
    done = runner.step("Comment", inputs("", ""))
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
    (call,) = runner.posted()
    assert ("repos/me/mine/issues/comments/41" in call) == (own == 41)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--scripts", " \n"], "plimsoll: no script is named; give one a line"),
        (["--scripts", "none.py"], "plimsoll: none.py: no such file"),
        (["--scripts", "a 'b"], 'plimsoll: "a \'b" is no script with its arguments'),
        (["--scripts", "a", "--may-grow", "much"], "plimsoll: not a size: 'much'"),
        (["--scripts", "a", "--before", "nowhere"], "plimsoll: nowhere: no such folder"),
    ],
)
def test_bad_input_is_one_line(options: list[str], complaint: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable, "-m", "plimsoll.integrations.pull_request", "--before", ".", "--after",
            ".", "--output", "out.md", *options,
        ],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith(complaint), done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
