"""Tests that the stdout and stderr of commands equal the files in tests/data/screens."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from plimsoll.cli.app import VERBS
from tests.apart import ROOT
from tests.pages import is_shown
from tests.screens import SCREENS, command_of, screen_of, screens

torch = pytest.importorskip("torch")

HAS_CARD = Path("/dev/nvidiactl").exists()


def marked(screen: Path) -> object:
    marks = (pytest.mark.long,) if "long" in screen.parts else ()
    return pytest.param(screen, id=str(screen.relative_to(SCREENS)), marks=marks)


@pytest.mark.skipif(HAS_CARD, reason="the screens are those of a machine without a GPU")
@pytest.mark.skipif(
    not is_shown(torch.__version__), reason="the screens show what another PyTorch takes"
)
@pytest.mark.parametrize("screen", [marked(screen) for screen in screens()])
def test_a_command_prints_what_its_file_holds(screen: Path) -> None:
    expected = screen.read_text(encoding="utf-8")
    printed = screen_of(command_of(screen))
    if printed != expected:
        name = str(screen.relative_to(ROOT))
        lines = difflib.unified_diff(
            expected.splitlines(), printed.splitlines(), name, "what is printed now", lineterm=""
        )
        pytest.fail(
            "\n".join([*lines, f"to take this over: python -m tests.screens {name}"]),
            pytrace=False,
        )


def test_every_verb_has_its_help_and_a_first_screen() -> None:
    verbs = {verb.name for each in VERBS.values() for verb in each}
    assert {file.stem for file in (SCREENS / "help").iterdir()} == {"plimsoll", *verbs}
    assert verbs <= {file.stem for file in (SCREENS / "answers").rglob("*.txt")}
