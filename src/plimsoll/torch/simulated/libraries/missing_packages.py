"""Packages that a program needs and that are not here, because they need a GPU or its compiler.

A file of `stand_ins/` has the name of the module that it stands in for. A package is stood in for
where it is not installed and the program asks for it: its own code imports it, or names what needs
it. That is decided when it is first looked for, so that all libraries see the same. What a library
merely looks for stays missing: it would take another way than without the package. The modules of
kernels always are the stand-ins, of installed packages too.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from dataclasses import dataclass
from importlib.metadata import Distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.analysis import is_program

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.metadata import DistributionFinder
    from types import FrameType, ModuleType

_FOLDER = Path(__file__).with_name("stand_ins")
_INSTALLED = ("site-packages", "dist-packages")


@dataclass(frozen=True)
class _Package:
    """What stands in for a package.

    Attributes:
        distribution: The name under which it is installed.
        version: The version whose source was read.
        submodules: Those that can be imported; each has all that the package has.
        words: Strings and attributes by which a program asks for it without importing it.
        needs: Packages that it imports itself.
    """

    distribution: str
    version: str
    submodules: tuple[str, ...]
    words: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


_PACKAGES = {
    "flash_attn": _Package(
        "flash-attn",
        "2.8.3",
        (
            "flash_attn_interface",
            "bert_padding",
            "layers",
            "layers.rotary",
            "losses",
            "losses.cross_entropy",
            "ops",
            "ops.triton",
            "ops.triton.cross_entropy",
        ),
        ("flash_attention_2",),
    ),
    "flash_attn_interface": _Package("flash-attn-3", "3.0.0", (), ("flash_attention_3",)),
    "xformers": _Package(
        "xformers",
        "0.0.33",
        ("ops", "ops.fmha", "ops.fmha.attn_bias"),
        ("enable_xformers_memory_efficient_attention",),
    ),
    "causal_conv1d": _Package("causal-conv1d", "1.6.0", ("causal_conv1d_interface",)),
    "mamba_ssm": _Package(
        "mamba-ssm",
        "2.3.0",
        (
            "modules",
            "modules.mamba_simple",
            "modules.mamba2",
            "ops",
            "ops.selective_scan_interface",
            "ops.triton",
            "ops.triton.selective_state_update",
            "ops.triton.ssd_combined",
            "ops.triton.layer_norm",
            "ops.triton.layernorm_gated",
        ),
        needs=("causal_conv1d",),
    ),
}
_KERNELS = {
    "flash_attn_2_cuda": "flash_attn",
    "causal_conv1d_cuda": "causal_conv1d",
    "selective_scan_cuda": "mamba_ssm",
}
"""Modules of kernels, and the packages whose kernels they are."""


def stand_in() -> None:
    """Let what is missing be found, from now on."""
    sys.meta_path.insert(0, _Kernels())
    sys.meta_path.append(_MissingPackages())


class _Kernels(importlib.abc.MetaPathFinder):
    """Finds modules of kernels, for packages that are being imported."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:  # noqa: ARG002
        if _KERNELS.get(name) not in sys.modules:
            return None
        return importlib.util.spec_from_file_location(name, _FOLDER / f"{name}.py")


class _MissingPackages(importlib.abc.MetaPathFinder):
    """Comes last, so it is asked for what is not installed."""

    def __init__(self) -> None:
        self._command: list[str] | None = None
        self._asked: set[str] = set()

    def _is_there(self, name: str) -> bool:
        if sys.argv != self._command:
            self._command = list(sys.argv)
            self._ask(_asked_for_by_script())
        if name not in self._asked and _is_importing(sys._getframe(2)):
            self._ask({name})
        return name in self._asked

    def _ask(self, names: set[str]) -> None:
        self._asked |= names
        self._asked.update(*(_PACKAGES[name].needs for name in names))

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:  # noqa: ARG002
        top, _, submodule = name.partition(".")
        package = _PACKAGES.get(top)
        if package is None:
            return None
        if submodule:
            of = sys.modules.get(top)
            if not isinstance(getattr(of, "__loader__", None), _Loader):
                return None
            if submodule not in package.submodules:
                return None
            return importlib.machinery.ModuleSpec(name, _Part(of), is_package=True)
        if not self._is_there(name):
            return None
        file = str(_FOLDER / f"{name}.py")
        loader = _Loader(name, file)
        return importlib.util.spec_from_file_location(
            name, file, loader=loader, submodule_search_locations=[]
        )

    def find_distributions(
        self, context: DistributionFinder.Context | None = None
    ) -> Iterator[Distribution]:
        """As `importlib.metadata` asks, by name or for all."""
        wanted = getattr(context, "name", None)
        for name, package in _PACKAGES.items():
            if wanted is not None and _normalized(wanted) != package.distribution:
                continue
            if self._is_there(name) and _comes_from_here(name):
                yield _MissingDistribution(name, package)


def _normalized(name: str) -> str:
    return name.lower().replace("_", "-")


def _comes_from_here(name: str) -> bool:
    """Whether a package that the program asks for is not installed."""
    spec = importlib.util.find_spec(name)
    return spec is not None and isinstance(spec.loader, _Loader)


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads what stands in for a package, and says so."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the file, and make the package's submodules."""
        import torch

        super().exec_module(module)
        package = _PACKAGES[module.__name__]
        for submodule in package.submodules:
            importlib.import_module(f"{module.__name__}.{submodule}")
        torch.ops.plimsoll.assume(
            module.__name__,
            "it is not installed here: a stand-in takes the memory that the kernels of "
            f"{package.distribution} {package.version} take, as read from source, not measured",
        )


class _Part(importlib.abc.Loader):
    """Loads a submodule: it has all that its package has."""

    def __init__(self, package: Any) -> None:
        self._package = package

    def exec_module(self, module: ModuleType) -> None:
        for name, value in vars(self._package).items():
            if not name.startswith("__"):
                vars(module).setdefault(name, value)


class _MissingDistribution(Distribution):
    """What is known of an installed package."""

    def __init__(self, name: str, package: _Package) -> None:
        self._files = {
            "METADATA": f"Metadata-Version: 2.1\nName: {package.distribution}\n"
            f"Version: {package.version}\n",
            "top_level.txt": f"{name}\n",
        }

    def read_text(self, filename: str) -> str | None:
        """A file of its description."""
        return self._files.get(filename)

    def locate_file(self, path: Any) -> Any:
        """Where a file of it is."""
        return _FOLDER / path


def _asked_for_by_script() -> set[str]:
    """The packages that the script imports, or asks for in words; in its arguments too."""
    words = {word: name for name, package in _PACKAGES.items() for word in package.words}
    said = {argument.rpartition("=")[2] for argument in sys.argv[1:]}
    try:
        tree = ast.parse(Path(sys.argv[0]).read_bytes())
    except (OSError, SyntaxError, ValueError, IndexError):
        tree = ast.Module([], [])
    imported = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            case ast.ImportFrom(module=str() as module, level=0):
                imported.add(module.partition(".")[0])
            case ast.Constant(value=str() as text):
                said.add(text)
            case ast.Attribute(attr=name):
                said.add(name)
    return (imported & set(_PACKAGES)) | {words[word] for word in said & set(words)}


def _is_importing(frame: FrameType | None) -> bool:
    """Whether the program's own code asks, and no installed library does so for it."""
    while frame is not None:
        code = frame.f_code
        if "importlib" not in code.co_filename and code.co_filename != __file__:
            return not any(part in code.co_filename for part in _INSTALLED) and is_program(
                (code.co_filename, frame.f_lineno, code.co_name)
            )
        frame = frame.f_back
    return False
