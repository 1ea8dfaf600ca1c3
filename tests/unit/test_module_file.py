"""Tests that plimsoll finds the file that `python -m` runs, and runs no code of packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from plimsoll.base.errors import InputError
from plimsoll.base.script_file import module_file


@pytest.fixture(autouse=True)
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for folder in ("trainer", "trainer/inner"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text("raise SystemExit('was run')")
    for file in ("alone.py", "trainer/main.py", "trainer/inner/__main__.py"):
        (tmp_path / file).write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("alone", "alone.py"),
        ("trainer.main", "trainer/main.py"),
        ("trainer.inner", "trainer/inner/__main__.py"),
    ],
)
def test_a_modules_file_is_found_by_its_name(name: str, file: str, packages: Path) -> None:
    assert module_file(name) == packages / file


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nothing", "there is no module nothing"),
        ("trainer.nothing", "there is no module trainer.nothing"),
        ("alone.nothing", "there is no module alone.nothing"),
        ("alone.json", "there is no module alone.json"),
        ("trainer", "there is no module trainer.__main__"),
        ("math", "math: this module has no Python source"),
    ],
)
def test_what_is_no_module_is_refused(name: str, why: str) -> None:
    with pytest.raises(InputError) as error:
        module_file(name)
    assert str(error.value) == why
