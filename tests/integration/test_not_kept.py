"""Tests that each verb says which parts of its predictions are not guaranteed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from plimsoll.cli.app import app

pytest.importorskip("torch")

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
import sys, torch
x = torch.randn(1000 * int(sys.argv[-1]), 1000, device="cuda")
kept = x[x > 0] if "by_data" in sys.argv else x[x.shape[0] // 2 :]
"""


@pytest.mark.parametrize(
    "verb",
    [
        "predict",
        *(pytest.param(each, marks=pytest.mark.long) for each in ("fit", "within", "sweep")),
    ],
)
def test_each_verb_tells_promises_that_it_could_not_keep(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "takes.py"
    script.write_text(SCRIPT)
    last = {"fit": [], "sweep": []}.get(verb, ["--n", "4"])
    for how in ("by_data", "by_shape"):
        words = {
            "predict": ["predict", "--json", str(script), "--", how, *last],
            "fit": ["fit", "--json", "--vary=--n", "--at-most", "2", str(script), how],
            "within": ["fit", "--json", str(script), "--", how, *last],
            "sweep": ["sweep", "--json", str(script), "--vary=--n=4", f"--arguments={how}"],
        }[verb]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        promises = [each["promise"] for each in json.loads(done.stdout)["not_kept"]]
        said = "plimsoll: the memory depends on data that plimsoll did not compute: "
        lines = [line for line in done.stderr.splitlines() if line.startswith(said)]
        assert ("values" in promises) == (how == "by_data")
        assert len(lines) == len(promises)
