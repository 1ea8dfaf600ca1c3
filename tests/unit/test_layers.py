"""Each package imports only those before it, as ARCHITECTURE.md says."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(__file__).parents[2] / "src" / "plimsoll"
ORDER = (
    "trace", "gpus", "analysis", "engine", "replay", "tiers", "process", "torch", "record", "data",
    "view", "predict", "explain", "top", "cli",
)  # fmt: skip
# A recording that the environment asks for begins with the allocator, which comes with PyTorch.
UPWARD = {("torch", "record")}
IMPORT_NAMES = {"nvidia-ml-py": "pynvml"}


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def imported(node: ast.AST) -> Iterator[str]:
    """Modules that are imported when a file runs, functions' own imports too."""
    for child in ast.iter_child_nodes(node):
        if is_for_types(child):
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module is not None:
            yield child.module
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        else:
            yield from imported(child)


def packages(path: Path) -> set[str]:
    modules = imported(ast.parse(path.read_text()))
    parts = (module.split(".") for module in modules if module.startswith("plimsoll."))
    return {names[1] for names in parts} & set(ORDER)


def test_the_order_names_every_package() -> None:
    folders = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert folders == set(ORDER)


def test_packages_import_only_those_before_them() -> None:
    wrong = {
        (name, other)
        for name in ORDER
        for path in (SOURCE / name).rglob("*.py")
        for other in packages(path)
        if ORDER.index(other) > ORDER.index(name)
    }
    assert wrong == UPWARD


def test_what_every_package_uses_imports_none() -> None:
    for name in ("errors", "files", "json_text", "text", "units"):
        assert packages(SOURCE / f"{name}.py") == set()


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
