"""Tests `#include` lines in C++: lower folders include no higher ones, and no circle forms."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.includes import circle, included, sources, units

ROOT = Path(__file__).parents[2]
TORCH = ROOT / "src" / "plimsoll" / "torch"
SIMULATED = TORCH / "simulated" / "csrc"
# From the lowest folder to the highest; each includes only those before it.
ORDER = (
    "device", "operation", "chips", "timing", "values", "rules", "checks", "layouts",
    "collectives", "execute", "python",
)  # fmt: skip
STAND_INS = "lean"  # headers that replace PyTorch's


def folder_of(name: str) -> str:
    return name.partition("/")[0]


def arrows_back(root: Path) -> set[tuple[str, str]]:
    """Returns (including, included) for each file that includes a file of a later folder."""
    return {
        (name, other)
        for path in sources(root)
        if (folder := folder_of(name := str(path.relative_to(root)))) != STAND_INS
        for other in included(path)
        if (root / other).exists() and ORDER.index(folder) < ORDER.index(folder_of(other))
    }


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_the_order_names_every_folder() -> None:
    assert {path.name for path in SIMULATED.iterdir()} == {*ORDER, STAND_INS}


def test_an_arrow_back_is_found(tmp_path: Path) -> None:
    write(tmp_path, {"rules/a.h": '#include "device/b.h"\n', "device/b.h": ""})
    assert arrows_back(tmp_path) == set()
    write(tmp_path, {"device/b.cpp": '#include "rules/a.h"\n'})
    assert arrows_back(tmp_path) == {("device/b.cpp", "rules/a.h")}


def test_folders_include_only_those_before_them() -> None:
    assert arrows_back(SIMULATED) == set()


def test_files_are_named_from_the_root() -> None:
    for path in sources(SIMULATED):
        for name in included(path):
            is_own = (SIMULATED / name).exists()
            assert is_own or name.startswith("plimsoll/") or name.endswith(".inc"), (path, name)


def test_no_two_units_have_one_name() -> None:
    counts = Counter(Path(name).name for name in units(SIMULATED))
    assert {name for name, count in counts.items() if count > 1} == set()


def test_a_circle_of_units_is_found(tmp_path: Path) -> None:
    """A unit is a source with its header. Headers form no circle here, but the units do."""
    write(tmp_path, {"a.h": "", "a.cpp": '#include "a.h"\n#include "b.h"\n', "b.h": ""})
    assert circle(units(tmp_path)) == []
    write(tmp_path, {"b.cpp": '#include "a.h"\n'})
    assert circle(units(tmp_path)) == ["a", "b"]


@pytest.mark.parametrize("root", [SIMULATED, TORCH / "live" / "csrc", ROOT / "preload"], ids=str)
def test_no_circle_of_units(root: Path) -> None:
    of_root = units(root)
    assert any(of_root.values())
    assert circle(of_root) == []
