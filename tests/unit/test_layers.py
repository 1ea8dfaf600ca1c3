"""Tests that plimsoll's rooms import only earlier rooms, and never in a circle.

Rooms are the top-level packages (see ARCHITECTURE.md). Every import counts, even one inside a
function, for types alone, or by a name in a string.
"""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "plimsoll"
OWN = ""  # stands for the modules of a room that are in none of the packages listed here
ROOMS = {
    "base": (OWN, "telemetry", "workers"),
    "recordings": (OWN, "analysis", "causes"),
    "engine": ("gpus", OWN, "simulator", "recorder", "plans", "replays"),
    "offloading": ("tiers", OWN, "training", "data"),
    "torch": (OWN, "array_libraries", "building", "wheel", "live", "simulated", "session"),
    "page": (OWN,),
    "prediction": ("trials", "recipes", OWN, "fitting", "sweeps", "serving"),
    "explanation": (OWN, "ranks"),
    "integrations": (OWN, "top", "diagnosis"),
    "cli": (OWN,),
}
"""All rooms in order; each room lists its packages in order."""
FACE = ""  # the `plimsoll` package itself, with its public names
ORDER = (*(room for room in ROOMS if room != "cli"), FACE, "cli", "__main__")
IMPORT_NAMES = {"nvidia-ml-py": "pynvml"}


@cache
def modules() -> dict[str, Path]:
    """Returns all modules and packages by name, except the native module, which has no source."""
    named = {".".join(path.relative_to(SOURCE.parent).with_suffix("").parts): path
             for path in SOURCE.rglob("*.py")}  # fmt: skip
    return {name.removesuffix(".__init__"): path for name, path in named.items()}


def _imported(node: ast.AST, package: str) -> Iterator[str]:
    match node:
        case ast.Import():
            yield from (alias.name for alias in node.names)
        case ast.ImportFrom():
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            module = ".".join(filter(None, (above, node.module)))
            for alias in node.names:
                name = f"{module}.{alias.name}"
                yield name if name in modules() or alias.name == "_core" else module
        case ast.Constant(value=str() as text) if re.fullmatch(r"plimsoll(\.\w+)+", text):
            yield text


def imports_of(name: str, path: Path, source: str | None = None) -> set[str]:
    """Returns the modules of the project that a file imports or names in strings."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    tree = ast.parse(path.read_text() if source is None else source)
    found = {each for node in ast.walk(tree) for each in _imported(node, package)}
    return {each for each in found if each in modules()} - {name}


@cache
def graph() -> dict[str, set[str]]:
    return {name: imports_of(name, path) for name, path in modules().items()}


def room_of(name: str) -> str:
    return name.split(".")[1] if "." in name else FACE


def package_of(name: str) -> str:
    """Returns the package that a module belongs to within its room."""
    _, room, *rest = name.split(".")
    return rest[0] if rest and rest[0] in ROOMS[room] else OWN


def arrows(room: str) -> list[tuple[str, str]]:
    """Returns all imports by a room's modules, as pairs of importer and imported."""
    return [(name, other) for name in modules() if room_of(name) == room for other in graph()[name]]


def test_the_top_of_the_package_has_ten_rooms() -> None:
    assert len(ROOMS) == 10
    assert {room_of(name) for name in modules()} == {*ORDER}
    assert {path.stem for path in SOURCE.glob("*.py")} == {"__init__", "__main__"}


def test_no_file_imports_in_a_circle() -> None:
    assert len(graph()) > 100
    try:
        TopologicalSorter(graph()).prepare()
    except CycleError as error:
        pytest.fail(f"a circle: {' <- '.join(error.args[1])}")


@pytest.mark.parametrize("room", ORDER)
def test_rooms_import_only_those_before_them(room: str) -> None:
    before = ORDER[: ORDER.index(room) + 1]
    assert [each for each in arrows(room) if room_of(each[1]) not in before] == []


@pytest.mark.parametrize("room", ROOMS)
def test_packages_of_a_room_import_only_those_before_them(room: str) -> None:
    packages = ROOMS[room]
    assert {package_of(name) for name in modules() if room_of(name) == room} == {*packages}
    assert [
        (name, other)
        for name, other in arrows(room)
        if room_of(other) == room
        and packages.index(package_of(other)) > packages.index(package_of(name))
    ] == []


def test_packages_give_no_names_of_other_modules() -> None:
    """Checks that only the `__all__` of `plimsoll` itself has names imported from other modules."""
    for name, path in modules().items():
        if path.name == "__init__.py" and name != "plimsoll" and "stand_ins" not in path.parts:
            names = {
                alias.asname or alias.name
                for node in ast.parse(path.read_text()).body
                if isinstance(node, ast.ImportFrom)
                for alias in node.names
            }
            given = set(getattr(import_module(name), "__all__", ()))
            assert names & given == set(), name


@pytest.mark.parametrize(
    "source",
    [
        "import plimsoll.cli.app",
        "from plimsoll.cli import app",
        "def late():\n    from plimsoll.cli.app import app",
        "if TYPE_CHECKING:\n    from plimsoll.cli.app import App",
        "import_module('plimsoll.cli.app')",
        "sys.modules.get('plimsoll.cli.app')",
        "from ..cli import app",
        "from ..cli.app import App",
    ],
)  # fmt: skip
def test_every_kind_of_import_is_seen(source: str) -> None:
    path = SOURCE / "page" / "run.py"
    assert "plimsoll.cli.app" in imports_of("plimsoll.page.run", path, source)


def test_modules_have_names_of_their_own() -> None:
    """Checks that no two modules share a name, unless the name is in `same`.

    Modules of stand-ins and of `cli` are left out.
    """
    same = {"__init__", "text", "html", "modules", "parts", "results"}
    ours = [path for path in SOURCE.rglob("*.py") if "stand_ins" not in path.parts]
    stems = [path.stem for path in ours if path.parent.name != "cli"]
    assert {stem for stem in stems if stems.count(stem) > 1} <= same


def test_rooms_are_not_named_as_functions_are() -> None:
    import plimsoll

    assert "predict" in vars(plimsoll)["__all__"]
    assert ROOMS.keys().isdisjoint(vars(plimsoll)["__all__"])


def test_the_page_about_the_architecture_is_short() -> None:
    lines = (ROOT / "ARCHITECTURE.md").read_text().splitlines()
    assert len(lines) <= 120
    cells = [cell for line in lines if line.startswith("|") for cell in line.split("|")]
    assert [cell for cell in cells if len(cell.split()) > 20] == []
    rows = [line.split("`")[1] for line in lines if line.startswith("| `")]
    assert rows[-len(ROOMS) :] == [*ROOMS]


def test_the_words_are_few_and_each_is_explained_shortly() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text().partition("\n## Words\n")[2].partition("\n## ")[0]
    table = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    head, *rows = table
    assert head == ["word", "meaning", "whose"]
    assert 0 < len(rows) <= 25
    assert [row for row in rows if len(row[1].split()) > 12] == []
    assert len({row[0] for row in rows}) == len(rows)
    known = {"PyTorch", "CUDA", "NCCL", "Linux", "Windows", "plimsoll"}
    assert {row[2] for row in rows} <= known


def test_every_requirement_is_imported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = {re.split(r"[<>=~!]", one)[0] for one in project["dependencies"]}
    assert required
    source = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))

    def is_imported(requirement: str) -> bool:
        name = IMPORT_NAMES.get(requirement, requirement)
        way = rf'^ *(import|from) {name}\b|import_module\("{name}"\)'
        return re.search(way, source, re.MULTILINE) is not None

    assert {one for one in required if not is_imported(one)} == set()
    makefile = (ROOT / "Makefile").read_text()
    (listed,) = re.findall(r"^PACKAGES := (.*)$", makefile, re.MULTILINE)
    assert set(listed.split()) == required
