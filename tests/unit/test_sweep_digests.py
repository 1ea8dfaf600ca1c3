"""Tests which changes of a script or its modules make a sweep run the script again."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from plimsoll import InputError
from plimsoll.prediction.sweeps.case_runs import prepared
from plimsoll.prediction.sweeps.parts import Case
from plimsoll.prediction.sweeps.program_digest import ProgramDigests, own_modules


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes a script that imports a module; the module imports a package of several files."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    files = {
        "work/train.py": "import json, numpy\nimport model\nprint(model.layers)\n",
        "work/model.py": "def layers():\n    from parts.blocks import block\n    return block\n",
        "work/parts/__init__.py": "",
        "work/parts/blocks.py": "from .deep import sizes\nblock = sizes.WIDTH\n",
        "work/parts/deep/__init__.py": "from ..names import NAME\n",
        "work/parts/deep/sizes.py": "WIDTH = 8\nimport model\n",
        "work/parts/names.py": "NAME = 'deep'\n",
        "work/other.py": "",
        "shared/common.py": "",
        "shared/json.py": "",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "work" / "train.py"


def test_the_modules_of_a_script_are_those_of_its_folder(script: Path) -> None:
    found = [Path(one).relative_to(script.parent).as_posix() for one in own_modules(str(script))]
    assert found == [
        "model.py", "parts/__init__.py", "parts/blocks.py", "parts/deep/__init__.py",
        "parts/deep/sizes.py", "parts/names.py",
    ]  # fmt: skip


def test_a_package_may_be_a_folder_alone(script: Path) -> None:
    (script.parent / "parts/__init__.py").unlink()
    found = [Path(one).name for one in own_modules(str(script))]
    assert found == ["model.py", "blocks.py", "__init__.py", "sizes.py", "names.py"]


def test_modules_on_the_path_of_python_are_the_scripts_own_too(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = script.parents[1] / "shared"
    monkeypatch.setenv("PYTHONPATH", str(shared))
    script.write_text("import common\n")
    assert own_modules(str(script)) == [str(shared / "common.py")]


@pytest.mark.skipif(find_spec("torch") is None, reason="a request is checked by PyTorch's rules")
@pytest.mark.parametrize(
    ("changed", "is_another"),
    [("train.py", True), ("model.py", True), ("parts/deep/sizes.py", True), ("other.py", False)],
)
def test_a_script_is_another_when_a_module_of_its_own_is(
    script: Path, changed: str, is_another: bool
) -> None:
    case = Case("prediction", str(script), (), "T4", "", "native")
    before = prepared(case, ProgramDigests()).key
    assert prepared(case, ProgramDigests()).key == before
    with (script.parent / changed).open("a") as file:
        file.write("# changed\n")
    assert (prepared(case, ProgramDigests()).key != before) == is_another


@pytest.mark.parametrize("text", ["import model\nif", "import model\0", "import nowhere"])
def test_a_script_that_is_broken_has_a_digest_all_the_same(script: Path, text: str) -> None:
    script.write_text(text)
    first = ProgramDigests().of_script(str(script))
    script.write_text(f"{text} ")
    assert ProgramDigests().of_script(str(script)) != first


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.pickle: cannot be read: No such file"):
        ProgramDigests().of_file(str(tmp_path / "none.pickle"))
