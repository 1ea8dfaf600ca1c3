"""Tests that help texts and messages say: status 2 means bad input, or a script that fails."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from plimsoll.base.errors import ScriptError
from plimsoll.cli.app import app
from tests.apart import ROOT

RUNS_SCRIPTS = {
    "predict": "2 bad input, or the script fails",
    "fit": "2 bad input, or the script fails",
    "explain": "2 bad input, or the script given with --script fails",
    "sweep": "2 bad input, or every case ends with an error",
    "run": "The exit status is that of the script, or 2 if the script cannot start",
}


@pytest.mark.parametrize("verb", RUNS_SCRIPTS)
def test_the_help_of_a_verb_that_runs_a_script_says_what_status_two_means(verb: str) -> None:
    shown = CliRunner().invoke(app, [verb, "--help"]).stdout
    assert RUNS_SCRIPTS[verb] in " ".join(shown.split())


def test_the_list_of_verbs_and_the_pages_say_the_same() -> None:
    shown = " ".join(CliRunner().invoke(app, ["--help"]).stdout.split())
    assert "2 bad input, or the script fails" in shown
    assert "| 2 | bad input, or the script fails;" in (ROOT / "docs/json.md").read_text()
    page = " ".join((ROOT / "docs/errors.md").read_text().split())
    assert "Exit status 2 means bad input, or that the script fails" in page


@pytest.mark.parametrize(
    ("status", "more", "begin"),
    [
        (1, {"reason": "ValueError: no"}, "train.py ended with status 1: ValueError: no"),
        (-9, {}, "train.py was killed by SIGKILL"),
        (1, {"missed_network": True}, "train.py failed because plimsoll runs scripts offline"),
        (1, {"device_failure": "train.py:3"}, "train.py fails on a GPU at train.py:3"),
    ],
)
def test_the_message_of_a_failing_script_begins_with_the_script_and_how_it_ended(
    status: int, more: dict[str, object], begin: str
) -> None:
    assert str(ScriptError("train.py", status, **more)).startswith(begin)  # type: ignore[arg-type]
