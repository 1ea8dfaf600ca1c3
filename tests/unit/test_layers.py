"""Each package imports only those before it, as ARCHITECTURE.md says; no file imports in a circle.

Every import counts: those for types alone, those inside functions, those by string.
"""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(__file__).parents[2] / "src" / "plimsoll"
BASE = (
    "json_text", "printable", "layout", "errors", "systems", "units", "endings", "files",
    "long_work", "script_file", "notebook_form", "standard_error", "watchers", "process_place",
)  # fmt: skip
PACKAGES = (
    "workers", "telemetry", "trials", "recordings", "gpus", "analysis", "engines", "simulator",
    "tiers", "offloading", "training", "recorder", "replays", "array_libraries",
    "torch.building", "torch.live", "torch.simulated", "session", "data", "page", "recipes",
    "prediction", "fitting", "explanation", "ranks", "sweeps", "integrations", "top", "diagnosis",
)  # fmt: skip
FACE = ""  # the package itself: what `import plimsoll` gives
ORDER = (*PACKAGES, FACE, "cli", "__main__")
IMPORT_NAMES = {"nvidia-ml-py": "pynvml"}


@cache
def modules() -> dict[str, Path]:
    """All modules by name, packages too; the native one has no file to read."""
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
    """The modules of the project that a file names in imports or in strings."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    tree = ast.parse(path.read_text() if source is None else source)
    found = {each for node in ast.walk(tree) for each in _imported(node, package)}
    return {each for each in found if each in modules()} - {name}


@cache
def graph() -> dict[str, set[str]]:
    return {name: imports_of(name, path) for name, path in modules().items()}


def layer(name: str) -> str:
    """The package that a module is of; of a module of the base, its own name."""
    parts = name.split(".")[1:]
    if parts[:1] == ["torch"]:
        return ".".join(parts[:2])
    return parts[0] if parts else FACE


def test_the_order_names_every_package() -> None:
    assert {layer(name) for name in modules()} - set(BASE) == {*ORDER, "torch"}
    assert graph()["plimsoll.torch"] == set()


def test_no_file_imports_in_a_circle() -> None:
    assert len(graph()) > 100
    try:
        TopologicalSorter(graph()).prepare()
    except CycleError as error:
        pytest.fail(f"a circle: {' <- '.join(error.args[1])}")


@pytest.mark.parametrize("package", ORDER)
def test_packages_import_only_those_before_them(package: str) -> None:
    before = {*BASE, *ORDER[: ORDER.index(package) + 1]}
    mine = [name for name in modules() if layer(name) == package]
    assert mine
    assert {
        (name, other) for name in mine for other in graph()[name] if layer(other) not in before
    } == set()


def test_what_every_package_uses_imports_no_package() -> None:
    for name in BASE:
        if f"plimsoll.{name}" in modules():
            assert {layer(other) for other in graph()[f"plimsoll.{name}"]} <= set(BASE)


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
    path = SOURCE / "top" / "model.py"
    assert "plimsoll.cli.app" in imports_of("plimsoll.top.model", path, source)


def test_modules_have_names_of_their_own() -> None:
    """But for those that are the same thing in each package, and stand-ins for other packages."""
    same = {"__init__", "text", "html", "modules", "parts", "results"}
    ours = [path for path in SOURCE.rglob("*.py") if "stand_ins" not in path.parts]
    stems = [path.stem for path in ours if path.parent.name != "cli"]
    assert {stem for stem in stems if stems.count(stem) > 1} <= same


def test_packages_are_not_named_as_functions_are() -> None:
    import plimsoll

    assert "predict" in vars(plimsoll)["__all__"]
    assert {name.split(".")[0] for name in PACKAGES}.isdisjoint(vars(plimsoll)["__all__"])


def test_every_requirement_is_imported() -> None:
    project = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())["project"]
    required = {re.split(r"[<>=~!]", one)[0] for one in project["dependencies"]}
    assert required
    source = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))

    def is_imported(requirement: str) -> bool:
        name = IMPORT_NAMES.get(requirement, requirement)
        way = rf'^ *(import|from) {name}\b|import_module\("{name}"\)'
        return re.search(way, source, re.MULTILINE) is not None

    assert {one for one in required if not is_imported(one)} == set()
    makefile = (SOURCE.parents[1] / "Makefile").read_text()
    (listed,) = re.findall(r"^PACKAGES := (.*)$", makefile, re.MULTILINE)
    assert set(listed.split()) == required
