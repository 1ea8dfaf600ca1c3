"""Tests the number of planned steps, found from the loops around a step."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from plimsoll.prediction.child.heartbeat import pace_text
from plimsoll.prediction.child.planned_steps import planned_steps
from plimsoll.prediction.child.step_clock import Pace

if TYPE_CHECKING:
    from pathlib import Path


def planned(program: str, folder: Path) -> list[int | None]:
    """Returns the number of planned steps at each call of the program's `step`."""
    found: list[int | None] = []

    def step() -> None:
        found.append(planned_steps(sys._getframe(1), {__file__}, len(found) + 1))

    script = folder / "train.py"
    script.write_text(program)
    exec(compile(program, str(script), "exec"), {"step": step})
    return found


@pytest.mark.parametrize(
    ("program", "steps"),
    [
        ("for i in range(5): step()", 5),
        ("for i in range(2, 12, 2):\n    step()", 5),
        ("n = 3\nfor i in range(n * 2 - 1):\n    step()", 5),
        ("rows = [1, 2, 3]\nfor row in rows:\n    step()", 3),
        ("rows = [1, 2, 3]\nfor i, row in enumerate(rows, 1):\n    step()", 3),
        ("rows = [1, 2, 3]\nfor i, row in enumerate(rows, start=1):\n    step()", 3),
        ("tqdm = list\nfor i in tqdm(range(4)):\n    step()", 4),
        ("rows = [1, 2]\nfor e in range(3):\n    for row in rows:\n        step()", 6),
        ("rows = [1, 2]\nfor i in range(len(rows)):\n    step()", 2),
        (
            "import argparse\na = argparse.Namespace(steps=4)\n"
            "def train(a):\n    for i in range(a.steps):\n        step()\ntrain(a)",
            4,
        ),
        (
            "def epoch(rows):\n    for i, row in enumerate(rows):\n        if i % 2: step()\n"
            "for e in range(3): epoch([1, 2, 3, 4])",
            6,
        ),
        (
            "class State: pass\nclass Trainer:\n    def train(self):\n        while True:\n"
            "            step()\n            return\n"
            "t = Trainer()\nt.state = State()\nt.state.max_steps = 7\nt.train()",
            7,
        ),
    ],
)
def test_loops_with_a_known_number_of_rounds_say_how_many_steps_there_are(
    program: str, steps: int, tmp_path: Path
) -> None:
    assert set(planned(program, tmp_path)) == {steps}


@pytest.mark.parametrize(
    "program",
    [
        "step()",
        "while True:\n    step()\n    break",
        "for i in iter([1]):\n    step()",
        "rows = [1]\nwhile rows:\n    for i in range(3):\n        step()\n    rows = []",
        "for i in map(str, range(2)):\n    step()",
    ],
)
def test_other_loops_say_nothing(program: str, tmp_path: Path) -> None:
    assert set(planned(program, tmp_path)) == {None}


def test_nothing_of_the_program_is_called(tmp_path: Path) -> None:
    program = (
        "class Settings:\n    @property\n    def steps(self): raise RuntimeError\n"
        "    def __getattr__(self, name): raise RuntimeError\n"
        "class Rows:\n    def __iter__(self): return iter([1])\n"
        "    def __len__(self): raise RuntimeError\n"
        "a, rows = Settings(), Rows()\n"
        "for row in rows: step()\n"
        "def train():\n    for i in range(a.steps): step()\n"
        "try:\n    train()\nexcept RuntimeError: pass\n"
    )
    assert planned(program, tmp_path) == [None]


@pytest.mark.parametrize(
    ("pace", "text"),
    [
        (Pace(3, 10, 2.9), "step 3 of 10, about 20 s left"),
        (Pace(3, 1003, 0.6), "step 3 of 1,003, about 10 min left"),
        (Pace(1, 2001, 60.0), "step 1 of 2,001, about 33 h left"),
        (Pace(3, None, 2.5), "step 3, 2.50 s each"),
    ],
)
def test_the_time_left_is_said_where_it_is_known(pace: Pace, text: str) -> None:
    assert pace_text(pace) == text
