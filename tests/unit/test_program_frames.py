"""Tests detecting that a condition, such as an `if`, uses the value that `item()` returned."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from plimsoll.torch.simulated.program_frames import is_tested

_LIBRARY = str(Path("site-packages", "torch", "_tensor.py").absolute())


def answers(program: str) -> list[bool]:
    """Returns, for each `item()` call of a program, whether a condition uses the returned value."""
    found: list[bool] = []
    names: dict[str, Any] = {"ask": partial(is_tested, [__file__]), "found": found}
    exec(compile("def item():\n  found.append(ask())\n  return 1.0", _LIBRARY, "exec"), names)
    exec(compile(program, "train.py", "exec"), names)
    return found


@pytest.mark.parametrize(
    "program",
    [
        "if item() < 2: pass",
        "while item() > 2: pass",
        "loss = item()\nleast = min(loss, 3)\nwhile True:\n  if least < 5: break",
        "def loss(): return item()\nwhile loss() > 2: pass",
        "class State: pass\nstate = State()\nstate.loss = item()\nif state.loss > 1: pass",
    ],
)
def test_a_value_in_a_condition_decides(program: str) -> None:
    assert answers(program) == [True]


@pytest.mark.parametrize(
    "program",
    [
        "step = 0\nwhile step < 1:\n  step += 1\n  print(f'{item()}'[:0], end='')",
        "total = 0\nfor _ in range(1): total += item()\nprint(str(total)[:0], end='')",
        "losses = []\nlosses.append(item())",
        "def loss():\n  return item()\nlosses = [loss()]",
    ],
)
def test_a_value_that_is_printed_or_added_up_decides_nothing(program: str) -> None:
    assert answers(program) == [False]
