"""Finds the gallery's scripts, and reads what their docstrings declare.

A script is `AREA/NAME.py` in this folder. The first line of its docstring says what it shows. These
lines may follow:
- `Needs: …`: the libraries that the script needs besides PyTorch and NumPy.
- `Sizes depend on data.`: the sizes of tensors depend on data.
- `Only simulated.`: the script runs with stand-ins for its libraries, and never on a real GPU.

The last line that a script prints begins with `done:`.

This module imports neither PyTorch nor plimsoll, because the scripts are measured where plimsoll is
not installed.
"""

from __future__ import annotations

import ast
import importlib.metadata
import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
_NEEDS = re.compile(r"^Needs: (.+)$", re.MULTILINE)
_BY_DATA = re.compile(r"^Sizes depend on data\.$", re.MULTILINE)
_ONLY_SIMULATED = re.compile(r"^Only simulated\.$", re.MULTILINE)
_ALWAYS_THERE = ("torch", "numpy")


class ScriptRuleError(ValueError):
    """A script breaks a rule that this module's docstring states."""


@dataclass(frozen=True)
class Script:
    """A script of the gallery.

    Attributes:
        name: The name, AREA/NAME.
        path: The script's file.
        shows: The subject of the script, as a sentence.
        needs: The PyPI names of the script's libraries, besides PyTorch and NumPy.
        by_data: Whether sizes of tensors depend on data.
        only_simulated: Whether the script runs only with stand-ins, and never on a real GPU.
        last_line: The beginning of the last line that the script prints.
    """

    name: str
    path: Path
    shows: str
    needs: tuple[str, ...]
    by_data: bool
    only_simulated: bool
    last_line: str

    def missing(self) -> list[str]:
        """Returns the libraries that the script needs and that are not installed here.

        The list is empty if the script is only simulated, because it then runs with stand-ins.
        """
        needs = () if self.only_simulated else self.needs
        return [name for name in needs if version_of(name) is None]

    def ended_well(self, output: str) -> bool:
        """Returns whether the output has a line that begins as the script's last line should."""
        return any(line.startswith(self.last_line) for line in output.splitlines())

    def versions(self) -> dict[str, str]:
        """Returns the installed versions of the script's libraries."""
        found = {name: version_of(name) for name in self.needs}
        return {name: version for name, version in found.items() if version is not None}


def version_of(library: str) -> str | None:
    """Returns the version of a library, or None if it is not installed."""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None


def read_script(path: Path) -> Script:
    """Reads a script's docstring.

    Raises:
        ScriptRuleError: If the docstring does not say what the script shows, or if the script does
            not print a line that begins with `done:`.
    """
    name = f"{path.parent.name}/{path.stem}"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    text = ast.get_docstring(tree) or ""
    shows, _, rest = text.partition("\n\n")
    if not shows.endswith(".") or "\n" in shows:
        raise ScriptRuleError(
            f"{name}: the docstring's first line is no sentence that says what it shows"
        )
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    ends = {each for each in texts if isinstance(each, str) and each.startswith("done:")}
    if len(ends) != 1:
        raise ScriptRuleError(f"{name}: it has no one last line that begins with 'done:'")
    listed = match[1].split(", ") if (match := _NEEDS.search(rest)) else []
    needs = [re.sub(r"[-_.]+", "-", each).lower() for each in listed]
    return Script(
        name=name,
        path=path,
        shows=shows,
        needs=tuple(each for each in needs if each not in _ALWAYS_THERE),
        by_data=_BY_DATA.search(rest) is not None,
        only_simulated=_ONLY_SIMULATED.search(rest) is not None,
        last_line=ends.pop(),
    )


def all_scripts(only: str = "") -> list[Script]:
    """Returns scripts, sorted by name.

    `only` is a comma-separated list of scripts (AREA/NAME) and of areas (AREA); "" stands for all.
    """
    scripts = [read_script(path) for path in sorted(FOLDER.glob("[!_]*/*.py"))]
    if not only:
        return scripts
    asked = only.split(",")
    known = {each for script in scripts for each in (script.name, script.path.parent.name)}
    if unknown := sorted(set(asked) - known):
        raise SystemExit(f"there is no {', '.join(unknown)} in the gallery")
    return [each for each in scripts if each.name in asked or each.path.parent.name in asked]
