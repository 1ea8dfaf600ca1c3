"""The gallery's scripts, and what they say of themselves.

A script is `AREA/NAME.py` in this folder. Its docstring says in the first line what it shows, in a
line `Needs: …` which libraries it takes besides PyTorch and NumPy, and in a line `Sizes hang on
data.` that they do. The last line that it prints is fixed text, which begins with `done: `.

Knows neither PyTorch nor plimsoll: the scripts are measured where plimsoll is not.
"""

from __future__ import annotations

import ast
import importlib.metadata
import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
STAND_IN = " (stand-in)"
"""Follows a library in `Needs:` that only a GPU needs: a simulated one has a stand-in for it."""
_NEEDS = re.compile(r"^Needs: (.+)$", re.MULTILINE)
_BY_DATA = re.compile(r"^Sizes hang on data\.$", re.MULTILINE)


class ScriptRuleError(ValueError):
    """A file of the gallery that breaks a rule of it."""


@dataclass(frozen=True)
class Script:
    """One script.

    Attributes:
        name: AREA/NAME.
        path: The file.
        shows: What it shows: a sentence.
        needs: PyPI's names of the libraries, besides PyTorch and NumPy.
        stand_ins: Those of them that a simulated GPU has stand-ins for.
        by_data: Whether sizes of tensors hang on data.
        ends_with: The last line that it prints.
    """

    name: str
    path: Path
    shows: str
    needs: tuple[str, ...]
    stand_ins: tuple[str, ...]
    by_data: bool
    ends_with: str

    def missing(self, *, simulated: bool) -> list[str]:
        """The libraries that are not installed here."""
        needs = [name for name in self.needs if not (simulated and name in self.stand_ins)]
        return [name for name in needs if version_of(name) is None]

    def versions(self) -> dict[str, str]:
        """The versions of the libraries that are installed here."""
        found = {name: version_of(name) for name in self.needs}
        return {name: version for name, version in found.items() if version is not None}


def version_of(library: str) -> str | None:
    """The version of a library, or None where it is not installed."""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None


def read_script(path: Path) -> Script:
    """What a script says of itself.

    Raises:
        ScriptRuleError: If it does not say what it shows, or how it ends.
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
    ends = {each for each in texts if isinstance(each, str) and each.startswith("done: ")}
    if len(ends) != 1:
        raise ScriptRuleError(f"{name}: its last line is no fixed text that begins with 'done: '")
    listed = match[1].split(", ") if (match := _NEEDS.search(rest)) else []
    return Script(
        name=name,
        path=path,
        shows=shows,
        needs=tuple(each.removesuffix(STAND_IN) for each in listed),
        stand_ins=tuple(each.removesuffix(STAND_IN) for each in listed if each.endswith(STAND_IN)),
        by_data=_BY_DATA.search(rest) is not None,
        ends_with=ends.pop(),
    )


def all_scripts(only: str = "") -> list[Script]:
    """The scripts by name, or those that `only` names: AREA/NAME or AREA, with commas between."""
    scripts = [read_script(path) for path in sorted(FOLDER.glob("[!_]*/*.py"))]
    if not only:
        return scripts
    asked = only.split(",")
    known = {each for script in scripts for each in (script.name, script.path.parent.name)}
    if unknown := sorted(set(asked) - known):
        raise SystemExit(f"there is no {', '.join(unknown)} in the gallery")
    return [each for each in scripts if each.name in asked or each.path.parent.name in asked]
