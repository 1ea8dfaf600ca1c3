"""Tests finding scripts by their path, or by the name of an installed Python program."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from plimsoll import InputError
from plimsoll.base.script_file import is_kept, kept_script, script_file


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
        ("trainer", f"{folder / 'trainer'}: is not a Python program, and plimsoll runs no others"),
        ("nothing", "nothing: no such file"),
        ("installed", "installed: is a directory, not a script"),
    ]:
        with pytest.raises(InputError) as raised:
            script_file(name)
        assert str(raised.value) == why


def test_a_script_that_comes_through_a_pipe_is_kept_and_read_once(folder: Path) -> None:
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=["print(1)\n"])
    writer.start()
    kept = kept_script(str(pipe))
    writer.join()
    assert kept.read_text() == "print(1)\n"
    assert kept.suffix == ".py"
    assert is_kept(kept)
    assert kept_script(str(pipe)) == kept


@pytest.mark.parametrize("name", ["-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"])
@pytest.mark.parametrize("is_pipe", [False, True])
def test_standard_input_is_a_script_until_the_process_ends(
    name: str, is_pipe: bool, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    show = (
        "import sys; from plimsoll.base.script_file import kept_script\n"
        "kept = kept_script(sys.argv[1]); print(kept, kept_script(sys.argv[1]).read_text())"
    )
    with (tmp_path / "train.py").open() as file:
        done = subprocess.run(
            [sys.executable, "-c", show, name], capture_output=True, text=True, check=True,
            **({"input": file.read()} if is_pipe else {"stdin": file}),
        )  # fmt: skip
    path, text = done.stdout.split(maxsplit=1)
    assert text == "print(1)\n\n"
    assert not Path(path).parent.exists()


def test_a_file_is_not_kept_elsewhere_and_no_text_is_no_script(folder: Path) -> None:
    path = program(folder / "train.py", "")
    assert kept_script(str(path)) == path
    assert not is_kept(path)
    with pytest.raises(InputError, match="/dev/null: there is no script in it"):
        kept_script("/dev/null")
