"""Tests that `--json` prints valid JSON for any numbers."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from plimsoll.base.json_text import json_line
from tests.unit.top_machines import busy_machine


def refuse(constant: str) -> None:
    raise AssertionError(constant)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, np.float64("nan")])
def test_a_number_that_json_does_not_have_is_null(number: float) -> None:
    machine = busy_machine()
    first, *others = machine.gpus
    use = replace(first.processes[0], silent_seconds=number)
    odd = replace(first, utilization=number, processes=(use, *first.processes[1:]))
    line = json_line(replace(machine, gpus=(odd, *others)).to_dict())
    found = json.loads(line, parse_constant=refuse)
    assert found["gpus"][0]["utilization"] is None
    assert found["gpus"][0]["processes"][0]["silent_seconds"] is None
    assert found["gpus"][1:] == machine.to_dict()["gpus"][1:]
