"""Tests completion in shells: the candidates, and the installation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PLIMSOLL = Path(sys.executable).with_name("plimsoll")


def plimsoll(*arguments: str, **environment: str) -> str:
    return subprocess.run(
        [PLIMSOLL, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def offered(words: str) -> list[str]:
    """Returns the candidates that bash offers for the last word of a line."""
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    return plimsoll(_PLIMSOLL_COMPLETE="complete_bash", **asked).split()


def test_verbs_and_options_are_offered() -> None:
    assert offered("plimsoll re") == ["replay"]
    assert {"predict", "doctor"} <= set(offered("plimsoll "))
    assert offered("plimsoll replay --li") == ["--limit"]


def test_the_option_installs_it_for_the_user(tmp_path: Path) -> None:
    said = plimsoll("--install-completion", "bash", HOME=str(tmp_path))
    script = tmp_path / ".bash_completions" / "plimsoll.sh"
    assert str(script) in said
    assert "_PLIMSOLL_COMPLETE=complete_bash" in script.read_text()
    assert str(script) in (tmp_path / ".bashrc").read_text()
