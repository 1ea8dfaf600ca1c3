"""Scripts are found by their path, or by the name of an installed program in Python."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from plimsoll import InputError
from plimsoll.script_file import script_file


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    installed = tmp_path / "installed"
    installed.mkdir()
    monkeypatch.setenv("PATH", str(installed))
    monkeypatch.chdir(tmp_path)
    return installed


def program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_a_file_comes_before_a_program_of_its_name(folder: Path) -> None:
    program(folder / "trainer", "#!/usr/bin/python3\n")
    Path("trainer").write_text("")
    assert script_file("trainer") == Path("trainer")


@pytest.mark.parametrize("first", ["#!/opt/python3.12", "#!/bin/sh\n'''exec' \"/long/python\""])
def test_a_program_is_found_by_its_name_alone(folder: Path, first: str) -> None:
    found = program(folder / "trainer", f"{first}\nimport sys\n")
    assert script_file("trainer") == found
    with pytest.raises(InputError, match=r"^elsewhere/trainer: no such file$"):
        script_file("elsewhere/trainer")


def test_a_program_beside_this_python_comes_first(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(folder / "trainer", "#!/usr/bin/python3\n")
    (tmp_path / "bin").mkdir()
    own = program(tmp_path / "bin" / "trainer", "#!/usr/bin/python3\n")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    assert script_file("trainer") == own


def test_what_is_no_script_is_refused_in_one_line(folder: Path) -> None:
    program(folder / "trainer", "#!/bin/sh\necho no\n")
    for name, why in [
        ("trainer", f"{folder / 'trainer'}: is not a program in Python; only these can be run"),
        ("nothing", "nothing: no such file"),
        ("installed", "installed: is a directory, not a script"),
    ]:
        with pytest.raises(InputError) as raised:
            script_file(name)
        assert str(raised.value) == why
