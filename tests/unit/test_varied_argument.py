"""Tests which argument of a script `fit` varies, and how."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from plimsoll import InputError
from plimsoll.base.watchers import Watchers
from plimsoll.prediction.child.survey.arguments import Arguments, NoSuchOptionError
from plimsoll.prediction.fitting.varied_argument import (
    own_value,
    put_in,
    take_out,
    with_value,
)
from plimsoll.prediction.options import Options
from plimsoll.prediction.survey import ArgumentUse, Survey


def test_a_position_is_replaced_where_it_is() -> None:
    assert take_out(["256", "--n", "4"], "@1") == (256, ["256", "--n", "4"])
    assert put_in(["256", "--n", "4"], "@1", 8) == ["8", "--n", "4"]
    assert put_in(["a", "7"], "@2", 8) == ["a", "8"]
    with pytest.raises(InputError, match="@3 is an argument of the script, after --; it has 2"):
        take_out(["a", "7"], "@3")
    with pytest.raises(InputError, match="a number above zero, not 'a'"):
        take_out(["a", "7"], "@1")


def test_a_variable_is_set_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BATCH", raising=False)
    assert take_out(["a"], "env:BATCH") == (None, ["a"])
    monkeypatch.setenv("BATCH", "16")
    assert take_out(["a"], "env:BATCH") == (16, ["a"])
    request = Options(gpu="T4").request("json.tool", ["a"], is_module=True)
    changed = with_value(request, "env:BATCH", 8)
    assert (changed.arguments, changed.environment) == (["a"], {"BATCH": "8"})


def parsed(varied: str, line: list[str], monkeypatch: pytest.MonkeyPatch) -> object:
    """Parses a command line of a script with --batch_size and --steps, as `fit` does first."""
    for name in ("parse_known_args", "parse_args"):
        monkeypatch.setattr(argparse.ArgumentParser, name, getattr(argparse.ArgumentParser, name))
    monkeypatch.setattr("sys.argv", ["train.py", *line])
    Arguments(Watchers(), varied).install()
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=8)
    return parser.parse_args()


def test_an_option_that_the_script_lacks_is_said_when_it_parses_its_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(NoSuchOptionError) as error:
        parsed("--batch-size", [], monkeypatch)
    said = "the script has no --batch-size; did you mean --batch_size?"
    assert str(error.value) == said
    with pytest.raises(NoSuchOptionError, match=r"the script has no --zzz$"):
        parsed("--zzz", [], monkeypatch)


@pytest.mark.parametrize("option", ["--batch_size", "--batch"])
def test_an_option_or_its_beginning_is_accepted(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert parsed(option, ["--steps", "3"], monkeypatch) == argparse.Namespace(
        batch_size=8, steps=3
    )


def test_a_parser_that_ignores_unknown_options_still_shows_a_misspelt_one(tmp_path: Path) -> None:
    survey = tmp_path / "survey.json"
    found = Survey(arguments=[ArgumentUse(["--batch_size"], 8)])
    survey.write_text(json.dumps(found.to_dict()))
    with pytest.raises(InputError, match=r"no --batch-size; did you mean"):
        own_value(survey, "--batch-size")
    assert own_value(survey, "--batch_size") == 8
    assert own_value(survey, "--steps") is None
