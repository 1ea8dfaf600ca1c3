"""Stands in for missing packages that need a GPU or its compiler.

Each folder of `stand_ins/` has the layout of the package that it replaces. plimsoll uses a stand-in
if the package is not installed and the program requests the package. A program requests a package
if its own code imports the package, or if the script or its arguments name a feature that needs
the package. When Python first looks for such a package, plimsoll searches the script for requests.
Once a package is requested, all libraries find its stand-in.

Code that catches a failed import gets the stand-in only if the stand-in has every name that the
code uses. Otherwise the package is missing for this code. If only a library looks for a package,
the package stays missing, because the library would behave differently with it. The compiled
modules with kernels are always replaced, even for installed packages.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.util
import sys
from dataclasses import dataclass
from functools import cache
from importlib.machinery import PathFinder, SourceFileLoader
from importlib.metadata import Distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.recordings.analysis.lines import is_users
from plimsoll.torch.simulated.libraries.guarded_imports import uses_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.machinery import ModuleSpec
    from importlib.metadata import DistributionFinder
    from types import FrameType, ModuleType

_FOLDER = Path(__file__).with_name("stand_ins")


@dataclass(frozen=True)
class _Package:
    """A package that has a stand-in.

    Attributes:
        distribution: The name under which pip installs the package.
        version: The version whose source the stand-in follows.
        words: Strings and attributes by which a program requests the package without an import.
        needs: The other packages that this package imports.
        variables: Environment variables with which pip installs only the package's Python part,
            without nvcc.
    """

    distribution: str
    version: str
    words: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    variables: str = ""

    @property
    def way_to_install(self) -> str:
        """Returns the command that installs the package's Python part."""
        command = f"pip install --no-build-isolation {self.distribution}"
        return f"{self.variables} {command}" if self.variables else command


_PACKAGES = {
    "flash_attn": _Package(
        "flash-attn",
        "2.8.3",
        ("flash_attention_2",),
        variables="FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE FLASH_ATTENTION_FORCE_BUILD=TRUE",
    ),
    "flash_attn_interface": _Package("flash-attn-3", "3.0.0", ("flash_attention_3",)),
    "xformers": _Package("xformers", "0.0.33", ("enable_xformers_memory_efficient_attention",)),
    "causal_conv1d": _Package(
        "causal-conv1d",
        "1.6.0",
        variables="CAUSAL_CONV1D_SKIP_CUDA_BUILD=TRUE CAUSAL_CONV1D_FORCE_BUILD=TRUE",
    ),
    "mamba_ssm": _Package(
        "mamba-ssm",
        "2.3.0",
        needs=("causal_conv1d",),
        variables="MAMBA_SKIP_CUDA_BUILD=TRUE MAMBA_FORCE_BUILD=TRUE",
    ),
}
_KERNELS = {
    "flash_attn_2_cuda": "flash_attn",
    "causal_conv1d_cuda": "causal_conv1d",
    "selective_scan_cuda": "mamba_ssm",
}
"""Maps the name of each compiled module with kernels to the module's package."""


def stand_in() -> None:
    """Makes Python find the stand-ins from now on."""
    sys.meta_path.insert(0, _Parts())
    sys.meta_path.append(_MissingPackages())


class _Parts(importlib.abc.MetaPathFinder):
    """Finds the submodules of stand-ins.

    If a package is already imported, this finder also finds the stand-ins for the package's
    compiled modules.
    """

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:  # noqa: ARG002
        if _KERNELS.get(name) in sys.modules:
            return _stand_in_spec(name, [str(_FOLDER)])
        above, _, _ = name.rpartition(".")
        if not above or not _is_stand_in(sys.modules.get(above)):
            return None
        spec = _stand_in_spec(name, path)
        if spec is None and _imports(sys._getframe(1)):
            top = name.partition(".")[0]
            package = _PACKAGES[top]
            raise ModuleNotFoundError(
                f"plimsoll's stand-in for {top} has no {name}: install {package.distribution} "
                f"itself, whose Python part needs no GPU ({package.way_to_install}), or put its "
                "source on PYTHONPATH, or let the program catch the ImportError and go on without",
                name=top,
            )
        return spec


class _Loader(SourceFileLoader):
    """Loads a module as a package, so that Python asks `_Parts` for missing submodules."""

    def exec_module(self, module: ModuleType) -> None:
        """Makes the module a package, and runs its file."""
        module.__path__ = []
        super().exec_module(module)


def _stand_in_spec(name: str, path: Any) -> ModuleSpec | None:
    spec = PathFinder.find_spec(name, path)
    if spec is not None and spec.submodule_search_locations is None:
        spec.loader = _Loader(name, str(spec.origin))
    return spec


def _is_stand_in(module: Any) -> bool:
    return str(getattr(module, "__file__", None) or "").startswith(str(_FOLDER))


def _imports(frame: FrameType | None) -> bool:
    """Returns whether an import statement is the caller, rather than `importlib.util.find_spec`."""
    while frame is not None and "importlib" in frame.f_code.co_filename:
        if frame.f_code.co_filename in ("<frozen importlib.util>", importlib.util.__file__):
            return False
        frame = frame.f_back
    return True


class _MissingPackages(importlib.abc.MetaPathFinder):
    """Finds stand-ins for packages that are not installed: Python asks this finder last."""

    def __init__(self) -> None:
        self._command: list[str] | None = None
        self._asked: set[str] = set()

    def _is_there(self, name: str, *, is_import: bool) -> bool:
        if name in sys.modules:
            return True
        if sys.argv != self._command:
            self._command = list(sys.argv)
            self._ask(_asked_for_by_script())
        frame = _program_frame(sys._getframe(2))
        if frame is not None:
            file, line = frame.f_code.co_filename, frame.f_lineno
            if not (_may_import(name, file, line) if is_import else _may_ask(name, file)):
                return False
            self._ask({name})
        return name in self._asked

    def _ask(self, names: set[str]) -> None:
        self._asked |= names
        self._asked.update(*(_PACKAGES[name].needs for name in names))

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:  # noqa: ARG002
        if name not in _PACKAGES:
            return None
        if not self._is_there(name, is_import=_imports(sys._getframe(1))):
            return None
        return _stand_in_spec(name, [str(_FOLDER)])

    def find_distributions(
        self, context: DistributionFinder.Context | None = None
    ) -> Iterator[Distribution]:
        """Yields the metadata of the stand-ins in use.

        If `context` names a package, yields only the metadata of that package's stand-in.
        """
        wanted = getattr(context, "name", None)
        for name, package in _PACKAGES.items():
            if wanted is not None and _normalized(wanted) != package.distribution:
                continue
            if self._is_there(name, is_import=False) and _comes_from_here(name):
                yield _MissingDistribution(name, package)


def _normalized(name: str) -> str:
    return name.lower().replace("_", "-")


def _comes_from_here(name: str) -> bool:
    """Returns whether a package would be imported from the folder of stand-ins."""
    spec = importlib.util.find_spec(name)
    return spec is not None and str(spec.origin).startswith(str(_FOLDER))


class _MissingDistribution(Distribution):
    """The metadata of a stand-in, in the form that an installed package has."""

    def __init__(self, name: str, package: _Package) -> None:
        self._files = {
            "METADATA": f"Metadata-Version: 2.1\nName: {package.distribution}\n"
            f"Version: {package.version}\n",
            "top_level.txt": f"{name}\n",
        }

    def read_text(self, filename: str) -> str | None:
        """Returns the text of a file of the metadata; None if there is no such file."""
        return self._files.get(filename)

    def locate_file(self, path: Any) -> Any:
        """Returns the path of one of the package's files."""
        return _FOLDER / path


def _asked_for_by_script() -> set[str]:
    """Returns the packages that the script requests.

    The script imports such a package, or the script or its arguments contain one of the package's
    `words`.
    """
    words = {word: name for name, package in _PACKAGES.items() for word in package.words}
    said = {argument.rpartition("=")[2] for argument in sys.argv[1:]}
    script = sys.argv[0] if sys.argv else ""
    try:
        tree = ast.parse(Path(script).read_bytes())
    except (OSError, SyntaxError, ValueError):
        tree = ast.Module([], [])
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str() as text):
                said.add(text)
            case ast.Attribute(attr=name):
                said.add(name)
    imported = {
        name
        for name in _PACKAGES
        for use in uses_in(script).of(name)
        if use.is_import
        if PathFinder.find_spec(name) is not None or _may_import(name, script, use.line)
    }
    return imported | {words[word] for word in said & set(words)}


def _may_import(name: str, file: str, line: int) -> bool:
    """Returns whether an import gets the stand-in for a package.

    A guard is code that can do without the import, such as the body of a `try` that catches its
    error (see `guarded_imports`). An import outside every guard gets the stand-in; if the stand-in
    lacks a name, an error says so. An import within a guard gets the stand-in only if the stand-in
    has all names that the file uses within this guard or outside every guard.
    """
    uses = uses_in(file)
    guard = uses.guard_at(line)
    return guard is None or all(
        _has(use.name) for use in uses.of(name) if uses.guard_at(use.line) in (guard, None)
    )


def _may_ask(name: str, file: str) -> bool:
    """Returns whether a search by `find_spec` or for metadata finds a package's stand-in.

    After such a search, any file of the program may import the package. So the stand-in must have
    all names that these files use outside every guard. If the files import the package, the
    stand-in must also suit at least one of these imports (see `_may_import`).
    """
    files = [each for each in _program_files(Path(file)) if name.encode() in each.read_bytes()]
    uses = [(str(each), use) for each in files for use in uses_in(each).of(name)]
    imports = [_may_import(name, each, use.line) for each, use in uses if use.is_import]
    return (any(imports) or not imports) and all(
        _has(use.name) for each, use in uses if uses_in(each).guard_at(use.line) is None
    )


def _program_files(file: Path) -> Iterator[Path]:
    """Yields a program's Python files: those in its top folder, and in the packages there."""
    folder = file.absolute().parent
    while (folder / "__init__.py").exists():
        folder = folder.parent
    yield from folder.glob("*.py")
    for package in folder.glob("*/__init__.py"):
        yield from package.parent.rglob("*.py")


@cache
def _has(name: str) -> bool:
    """Returns whether a stand-in defines a dotted name."""
    place = _FOLDER
    for part in name.split("."):
        source = next((file for file in _files(place) if file.exists()), None)
        if (place / part).is_dir() or (place / f"{part}.py").exists():
            place /= part
        elif source is None:
            return False
        else:
            return part in _defined(source) or part in ("__name__", "__file__", "__path__")
    return True


def _files(module: Path) -> tuple[Path, Path]:
    """Returns the files that may be the source of a module."""
    return module / "__init__.py", module.with_suffix(".py")


@cache
def _defined(source: Path) -> frozenset[str]:
    """Returns the names that a module's top-level statements define."""
    names = set()
    for node in ast.parse(source.read_bytes()).body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Import(names=found) | ast.ImportFrom(names=found):
                names |= {alias.asname or alias.name for alias in found}
            case ast.Assign(targets=targets):
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return frozenset(names)


def _program_frame(frame: FrameType | None) -> FrameType | None:
    """Returns the frame whose code looks for the package; None if that code is not the user's."""
    while frame is not None:
        code = frame.f_code
        if "importlib" not in code.co_filename and code.co_filename != __file__:
            asks = (code.co_filename, frame.f_lineno, code.co_name)
            return frame if is_users(asks) else None
        frame = frame.f_back
    return None
