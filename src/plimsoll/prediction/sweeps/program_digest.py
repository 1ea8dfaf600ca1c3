"""Detects changed programs, by digests of their files and of the modules a script imports."""

from __future__ import annotations

import ast
import hashlib
import os
from importlib.machinery import all_suffixes
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.base.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class ProgramDigests:
    """Computes digests of programs, each once."""

    def __init__(self) -> None:
        self._files: dict[str, str] = {}
        self._scripts: dict[str, str] = {}

    def of_file(self, path: str) -> str:
        """Returns the digest of a file.

        Raises:
            InputError: If the file cannot be read.
        """
        if path not in self._files:
            try:
                with Path(path).open("rb") as file:
                    self._files[path] = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                raise InputError(f"{path}: cannot be read: {error.strerror}") from None
        return self._files[path]

    def of_script(self, path: str) -> str:
        """Returns the digest of a script and of its own modules.

        Raises:
            InputError: If one of the files cannot be read.
        """
        if path not in self._scripts:
            texts = [self.of_file(one) for one in (path, *own_modules(path))]
            self._scripts[path] = hashlib.sha256("\n".join(texts).encode()).hexdigest()
        return self._scripts[path]


def own_modules(script: str) -> list[str]:
    """Returns the files of modules that a script imports, directly or not, from its own folders.

    Its own folders are the script's folder and those in PYTHONPATH. Import statements count
    wherever they are, also within functions. Installed packages and imports by computed names do
    not count.
    """
    folders = [Path(script).absolute().parent]
    folders += [Path(one) for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    found: dict[str, Path | None] = {}
    waiting = list(_imported(Path(script), ""))
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found[name] = file = _file_of(name, folders)
        if file is not None and file.suffix == ".py":
            package = name if file.name == "__init__.py" else name.rpartition(".")[0]
            waiting += _imported(file, package)
    return [str(file) for _, file in sorted(found.items()) if file is not None]


def _imported(file: Path, package: str) -> Iterator[str]:
    """Yields each name that a file imports. For "a.b.c", yields "a", "a.b" and "a.b.c".

    Args:
        file: The Python file.
        package: The package to which the file belongs; "" for none.
    """
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):  # the run itself reports the error
        return
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                asked = [one.name for one in names]
            case ast.ImportFrom(module=module, names=names, level=level):
                above = package.split(".")[: package.count(".") + 2 - level] if level else []
                base = ".".join([*filter(None, above), *([module] if module else [])])
                asked = [f"{base}.{one.name}" if base else one.name for one in names]
            case _:
                continue
        for name in asked:
            parts = name.split(".")
            yield from (".".join(parts[: count + 1]) for count in range(len(parts)))


def _file_of(name: str, folders: Sequence[Path]) -> Path | None:
    """Returns the file of a module or package in these folders; None if there is no such file."""
    for folder in folders:
        base = folder.joinpath(*name.split("."))
        named = [base / "__init__.py", *(Path(f"{base}{end}") for end in all_suffixes())]
        for file in named:
            if file.is_file():
                return file
    return None
