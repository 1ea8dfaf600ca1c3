"""Tests that the command line and the Python function `predict` have equal options and defaults."""

from __future__ import annotations

import inspect
from dataclasses import fields

from plimsoll.cli.options import SIMULATION
from plimsoll.cli.predict import predict
from plimsoll.prediction.options import Options
from plimsoll.prediction.predict import predict as predict_in_python


def test_every_option_of_a_simulation_has_the_default_of_python() -> None:
    ours = {each.name: each.default for each in fields(Options) if each.name != "gpu"}
    assert {name: default for name, (_, default) in SIMULATION.items()} == ours


def test_the_python_function_takes_every_option() -> None:
    taken = inspect.signature(predict_in_python).parameters
    assert {each.name: each.default for each in fields(Options)}.items() <= {
        name: each.default for name, each in taken.items()
    }.items()


def test_a_verb_lists_the_options_where_its_parameter_stands() -> None:
    names = list(inspect.signature(predict).parameters)
    assert "simulation" not in names
    first = names.index("gpu") + 1
    assert names[first : first + len(SIMULATION)] == list(SIMULATION)
