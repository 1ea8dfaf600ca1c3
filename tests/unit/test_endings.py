"""Tests that every command accepts the same file name endings for recordings."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from plimsoll import InputError
from plimsoll.base.endings import (
    RECORDINGS,
    check_ending,
    check_new_recording,
    is_recording_name,
    without_ending,
)
from plimsoll.base.script_file import script_file
from plimsoll.cli.sweep import _plan
from plimsoll.explanation.ranks.rank_files import rank_in_name, recordings_in
from plimsoll.page.run import path_beside
from plimsoll.recordings.reading import read_recording
from tests.recordings import EXAMPLES

if TYPE_CHECKING:
    from collections.abc import Sequence

SNAPSHOT = EXAMPLES / "gpt2_adamw.pickle.gz"


def recordings_of(what: Sequence[Path]) -> tuple[list[str], list[str]]:
    plan, _ = _plan([str(path) for path in what], ["gpu=H100"], [], None, None, {})
    return list(plan.recordings), list(plan.scripts)


@pytest.mark.parametrize("ending", [*RECORDINGS, ".PKL.GZ"])
def test_every_command_takes_each_ending_for_a_recording(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"rank3{ending}"
    shutil.copy(SNAPSHOT, path)
    assert is_recording_name(path)
    assert recordings_of([path]) == ([str(path)], [])
    assert [file.name for file in recordings_in(str(tmp_path))] == [str(path)]
    assert rank_in_name(f"7{ending}", None) == 7
    assert path_beside([read_recording(path)], ".html") == tmp_path / "rank3.html"
    with pytest.raises(InputError, match="is a recording, not a script"):
        script_file(str(path))
    with pytest.raises(InputError, match="a page is a"):
        check_ending(path, ".html", what="a page")


def test_a_recording_of_any_name_is_not_run_as_a_script(tmp_path: Path) -> None:
    path, script = tmp_path / "snapshot", tmp_path / "train.py"
    shutil.copy(SNAPSHOT, path)
    script.write_text("print()\n")
    assert recordings_of([path, script]) == ([str(path)], [str(script)])


def test_the_longest_ending_is_no_part_of_a_name() -> None:
    assert without_ending("run.1.pickle.gz") == "run.1"
    assert without_ending("run.gz") == "run.gz"
    assert without_ending("plim") == "plim"


def test_a_new_recording_is_a_trace() -> None:
    check_new_recording("run.plim")
    check_new_recording("run.1")
    with pytest.raises(InputError, match=r"a recording is a \.plim file; name it run\.plim"):
        check_new_recording("run.pkl")
