"""Runs the steps of plimsoll's GitHub Action as GitHub does, on small repositories.

The action reports how a commit changes the memory of a script.
"""

from __future__ import annotations

import html
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.recordings import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

yaml = pytest.importorskip("yaml")
pytest.importorskip("torch")

SCRIPT = """
import torch

def held(count):
    return torch.zeros(count << 18, device="cuda")

tensor = held({mib})
"""
GH = """#!{python} -PE
import json, os, pathlib, subprocess, sys
with open("{calls}", "a") as file:
    print(json.dumps(sys.argv[1:]), file=file)
if "--jq" in sys.argv:
    subprocess.run(["jq", "-r", sys.argv[sys.argv.index("--jq") + 1], "{comments}"], check=True)
sys.exit({status})
"""
MARK = "<!-- plimsoll: the peak of GPU memory -->"


class Runner:
    """Acts as a GitHub runner: runs the steps of a composite action, in a runner's environment."""

    def __init__(
        self, folder: Path, *, comments: Sequence[tuple[bool, str]] = (), gh_status: int = 0
    ) -> None:
        self.repository, self.temporary = folder / "repository", folder / "temporary"
        tools = folder / "tools"
        for each in (self.repository, self.temporary, tools):
            each.mkdir()
        self.calls = folder / "calls"
        self.comments = folder / "comments"
        nodes = [
            {"id": f"IC_{number}", "viewerDidAuthor": is_own, "body": body}
            for number, (is_own, body) in enumerate(comments)
        ]
        answer = {"repository": {"pullRequest": {"comments": {"nodes": nodes}}}}
        self.comments.write_text(json.dumps({"data": answer}))
        gh = GH.format(
            python=sys.executable, calls=self.calls, comments=self.comments, status=gh_status
        )
        (tools / "gh").write_text(gh)
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

    def commit(self, mib: int, others: Mapping[str, str] | None = None) -> str:
        """Commits the script and other files. Returns the commit's hash."""
        (self.repository / "train.py").write_text(SCRIPT.format(mib=mib))
        for name, text in (others or {}).items():
            (self.repository / name).write_text(text)
        self.git("add", ".")
        self.git("-c", "user.name=me", "-c", "user.email=me@here", "commit", "-q", "-m", "change")
        return self.git("rev-parse", "HEAD").strip()

    def git(self, *arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=self.repository, check=True, capture_output=True, text=True
        ).stdout

    def step(self, name: str, inputs: dict[str, str]) -> subprocess.CompletedProcess[str]:
        """Runs one step of action.yml."""
        steps: list[dict[str, Any]] = yaml.safe_load((ROOT / "action.yml").read_text())["runs"][
            "steps"
        ]
        (step,) = (one for one in steps if one["name"] == name)
        known = {f"inputs.{key}": value for key, value in inputs.items()}
        known |= {"github.repository_owner": "me", "github.event.repository.name": "mine"}
        known |= {"github.event.pull_request.number": "7"}
        known |= {f"steps.predict.outputs.{key}": value for key, value in self.told().items()}

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

    def told(self) -> dict[str, str]:
        """Returns the outputs that the steps have set."""
        lines = self.outputs.read_text().splitlines() if self.outputs.exists() else []
        return dict(line.split("=", 1) for line in lines)

    def predict(self, base: str, may_grow: str) -> str:
        """Runs all steps. Returns the comment, followed by the exit status of the last step."""
        asked = inputs(base, may_grow)
        for name in ("Predict", "Comment"):
            done = self.step(name, asked)
            assert done.returncode == 0, done.stderr
        (call,) = self.posted()
        comment = Path(call[-1].removeprefix("body=@")).read_text()
        return f"{comment}{self.step('Verdict', asked).returncode}"

    def posted(self) -> list[list[str]]:
        """Returns the recorded calls of `gh`, except the search for the comment."""
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
@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_the_comment_says_what_a_change_takes_and_fails_the_check(runner: Runner) -> None:
    runner.git("init", "-q", "-b", "main")
    runner.git("remote", "add", "origin", ".")
    base = runner.commit(512)
    runner.git("checkout", "-q", "-b", "change")
    runner.commit(1024)
    comment = runner.predict(base, "10%")
    mark, answer = comment.splitlines()[:2]
    assert mark == MARK
    assert answer == "### GPU memory: +512.00 MiB at the peak of `train.py --epochs 1`"
    assert "| train.py held | 512.00 MiB | 1.00 GiB | +512.00 MiB |" in comment
    assert comment.endswith("\n4")
    assert f"{mark}\n{runner.summary.read_text()}4" == comment
    assert runner.git("worktree", "list").count("\n") == 1
    assert runner.git("status", "--porcelain") == ""
    (call,) = runner.posted()
    assert call[:3] == ["api", "--silent", "repos/me/mine/issues/7/comments"]


TRAP = "import sys\nsys.exit(1)\n"


@pytest.mark.long
@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_files_named_like_modules_change_nothing(runner: Runner) -> None:
    # PyTorch imports none of these modules. So these files cannot break the script itself.
    names = ("argparse", "cmd", "pip", "plimsoll", "rich", "shlex", "sitecustomize", "tomllib")
    traps = {f"{name}.py": TRAP for name in names}
    runner.git("init", "-q", "-b", "main")
    runner.git("remote", "add", "origin", ".")
    base = runner.commit(512)
    runner.commit(512, traps)
    comment = runner.predict(base, "0%")
    assert comment.startswith(f"{MARK}\n### GPU memory: nothing changes\n")
    assert comment.endswith("\n0")


@pytest.mark.long
@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_a_script_that_fails_now_is_said_and_is_not_worse(runner: Runner) -> None:
    runner.git("init", "-q", "-b", "main")
    runner.git("remote", "add", "origin", ".")
    base = runner.commit(512)
    script = "import colorsys\n"  # a standard module, which the checkout's colorsys.py now hides
    runner.commit(512, {"train.py": script, "colorsys.py": TRAP})
    comment = runner.predict(base, "0%")
    assert comment.startswith(f"{MARK}\n### GPU memory: `train.py --epochs 1` fails\n")
    why = "a module that it imports ends the process (colorsys.py:2 <module>)"
    assert f"| train.py ended with status 1: {why} |" in html.unescape(comment)
    assert comment.endswith("\n2")


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
@pytest.mark.parametrize(
    ("ends", "status"),
    [("raise ZeroDivisionError('it broke')", 1), ("sys.exit('it broke')", 1), ("os._exit(7)", 7)],
)
def test_a_crash_is_said_in_the_comment_and_is_not_worse(
    runner: Runner, ends: str, status: int
) -> None:
    broken = runner.temporary.parent / "broken.py"
    broken.write_text(f"import os, sys\nsys.stderr.write('it broke\\n')\n{ends}\n")
    python = runner.temporary.parent / "tools" / "python"
    python.write_text(f"#!/bin/sh\nexec {sys.executable} {broken}\n")
    python.chmod(0o755)
    runner.git("init", "-q", "-b", "main")
    runner.git("remote", "add", "origin", ".")
    comment = runner.predict(runner.commit(512), "")
    assert comment.startswith(
        f"{MARK}\n### GPU memory: not known\n\nplimsoll ended with status {status}:\n\n    "
    )
    assert "it broke" in comment
    assert comment.endswith(f"\n{status}")


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
@pytest.mark.parametrize(
    ("comments", "changed"),
    [
        ([], None),
        ([(True, f"{MARK}\nold"), (True, f"{MARK}\nolder")], "IC_0"),
        ([(False, f"{MARK}\nof another"), (True, "mine"), (True, f"{MARK}\nmine")], "IC_2"),
        ([(False, f"{MARK}\nof another"), (True, f"not first: {MARK}")], None),
    ],
)
def test_only_a_comment_of_its_own_is_replaced(
    comments: list[tuple[bool, str]], changed: str | None, tmp_path: Path
) -> None:
    runner = Runner(tmp_path, comments=comments)
    found = runner.temporary / "found.md"
    found.write_text("what is found\n")
    runner.outputs.write_text(f"status=0\nfound={found}\n")
    done = runner.step("Comment", inputs("", ""))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    (call,) = runner.posted()
    assert Path(call[-1].removeprefix("body=@")).read_text() == f"{MARK}\nwhat is found\n"
    if changed is None:
        assert call[:3] == ["api", "--silent", "repos/me/mine/issues/7/comments"]
    else:
        assert call[:3] == ["api", "--silent", "graphql"]
        assert f"id={changed}" in call


def test_a_refused_comment_is_a_warning(tmp_path: Path) -> None:
    runner = Runner(tmp_path, gh_status=1)
    (runner.temporary / "found.md").write_text("what is found\n")
    runner.outputs.write_text(f"status=0\nfound={runner.temporary}/found.md\n")
    done = runner.step("Comment", inputs("", ""))
    assert done.returncode == 0, done.stderr
    assert "::warning::plimsoll may not comment here" in done.stdout


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
            sys.executable, "-P", "-m", "plimsoll.integrations.pull_request", "--before", ".",
            "--after", ".", "--output", "out.md", *options,
        ],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith(complaint), done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
