"""Finds which C++ files of a folder include each other. Tests of the code's layers use this."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def sources(root: Path) -> list[Path]:
    """Returns the headers and sources below a folder."""
    return sorted([*root.rglob("*.h"), *root.rglob("*.cpp")])


def included(path: Path) -> list[str]:
    """Returns the project's own files that a file includes. Their names are in quotes."""
    return re.findall(r'^ *# *include *"(.*)"', path.read_text(), re.MULTILINE)


def circle(names: Mapping[str, list[str]]) -> list[str]:
    """Returns names that include each other in a circle; [] if there is no circle."""
    done: set[str] = set()

    def search(name: str, path: list[str]) -> list[str]:
        if name in path:
            return path[path.index(name) :]
        if name not in done and name in names:
            for other in names[name]:
                if found := search(other, [*path, name]):
                    return found
            done.add(name)
        return []

    return next((found for name in names if (found := search(name, []))), [])


def units(root: Path) -> dict[str, list[str]]:
    """Returns the names of the units below a folder, each with the units that it includes.

    A unit is a header and the source of the same name. The unit's name is the path of these files
    in the folder, without the suffix.
    """
    of_unit: dict[str, list[str]] = {}
    for path in sources(root):
        name = str(path.relative_to(root).with_suffix(""))
        others = of_unit.setdefault(name, [])
        for other in included(path):
            unit = other.rpartition(".")[0]
            if (root / other).exists() and unit != name and unit not in others:
                others.append(unit)
    return of_unit
