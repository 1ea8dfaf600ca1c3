"""Lets a PyTorch that was built without CUDA load libraries that were compiled for CUDA.

Such a library needs other libraries that are missing: NVIDIA's, and the CUDA parts of PyTorch. On
simulated GPUs the missing code is not needed, because simulated kernels replace CUDA's. So plimsoll
makes a stand-in for each missing library. The stand-in has the missing library's name and defines
the symbols that the loader asks for. Its data is all zeros. Its functions of CUDA report that there
is no device, and its functions of PyTorch throw an exception.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import subprocess
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from plimsoll.base.errors import InputError
from plimsoll.torch.building import versions
from plimsoll.torch.building.cache import building, is_usable, seal
from plimsoll.torch.building.compiler import find_compiler

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_MISSING = re.compile(r"(lib(?:cu|c10_cuda|torch_cuda|nv|nccl)[\w.-]*\.so[\w.]*): cannot open")
"""Matches the loader's message about a missing CUDA library."""
_UNDEFINED = re.compile(r"undefined symbol: (\w+)")
_SYMBOL = re.compile(r"(\w+) +GLOBAL +DEFAULT +UND ([\w$.]+)(?:@([\w.]+))?")
"""Matches a line of `readelf --dyn-syms` about a needed symbol: its kind, its name, its version."""
_OF_DRIVER = re.compile(r"cu[A-Z]")
"""Matches names of CUDA's driver functions.

plimsoll recognizes CUDA's other functions by the versions of their symbols. The symbols of the
driver have no versions.
"""
_PRELUDE = """\
#include <cxxabi.h>
#include <cstdlib>
#include <stdexcept>
#include <string>
[[noreturn]] static void refuse(const char* name) {
  int status = 0;
  char* const readable = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  const std::string text = readable != nullptr ? readable : name;
  std::free(readable);
  throw std::runtime_error("a library compiled for CUDA called " + text +
                           ", which needs a GPU; only its registered operations are simulated");
}
"""
_NO_DEVICE = 100
"""CUDA's error code for "no device", in the runtime and in the driver."""


@dataclass(frozen=True, order=True)
class _Symbol:
    """A symbol that a library needs, with its version ("" if it has none)."""

    version: str
    name: str
    is_data: bool

    def definition(self, number: int) -> str:
        """Returns C++ code that defines the symbol."""
        if self.is_data:
            return (
                f'extern "C" {{ extern char s{number}[] asm("{self.name}"); '
                f"alignas(64) char s{number}[4096] = {{}}; }}\n"
            )
        if self.name.startswith("__cuda"):
            body = "return 0;"  # the compiler's code calls such a function to register a kernel
        elif self.name.endswith(("ErrorString", "ErrorName")):
            body = 'return reinterpret_cast<long>("there is no GPU");'
        elif self.version or _OF_DRIVER.match(self.name):
            body = f"return {_NO_DEVICE};"
        else:
            body = f'refuse("{self.name}");'
        return (
            f'extern "C" long s{number}() asm("{self.name}"); '
            f'extern "C" long s{number}() {{ {body} }}\n'
        )


_loaded: dict[str, ctypes.CDLL] = {}
"""Maps the name of a missing library to the stand-in that was loaded for it."""
_defined: set[_Symbol] = set()


def stand_in_for(error: OSError | ImportError, library: Path, folder: Path) -> bool:
    """Loads a stand-in for a missing CUDA library that another library needs.

    Args:
        error: The loader's error.
        library: The file that could not be loaded.
        folder: The folder that keeps stand-ins.

    Returns:
        Whether to try again to load the file.

    Raises:
        InputError: If there is no readelf, no C++ compiler, or `folder` cannot be written.
    """
    said = f"{error}\n{error.__cause__}"  # PyTorch wraps the loader's error in its own
    missing, undefined = _MISSING.search(said), _UNDEFINED.search(said)
    if missing is None and (undefined is None or not _loaded):
        return False
    wanted = _asked_for(library) - _defined
    if missing is not None:
        name = missing[1]
        if name in _loaded:
            return False
        wanted = {s for s in wanted if s.version in ("", name)}
    else:
        assert undefined is not None
        if undefined[1] not in {symbol.name for symbol in wanted}:
            return False
        name = f"libplimsoll-{_digest(wanted)}.so"
    _loaded[name] = ctypes.CDLL(str(_build(name, wanted, folder)), mode=ctypes.RTLD_GLOBAL)
    _defined.update(wanted)
    return True


def _asked_for(library: Path) -> set[_Symbol]:
    """Returns the symbols that a library needs and that neither PyTorch nor the system defines."""
    if shutil.which("readelf") is None:
        raise InputError(
            f"{library.name} was compiled for CUDA, which this PyTorch lacks. plimsoll can still "
            "load it: install a C++ compiler and binutils (for readelf)"
        )
    listed = subprocess.run(  # noqa: S603
        ["readelf", "-W", "--dyn-syms", str(library)],  # noqa: S607
        capture_output=True,
        text=True,
        check=True,
    )
    torch = ctypes.CDLL(str(versions.torch_folder() / "lib/libtorch_python.so"))
    process = ctypes.CDLL(None)
    found = set()
    for kind, name, version in _SYMBOL.findall(listed.stdout):
        if version:
            if _MISSING.match(f"{version}: cannot open"):
                found.add(_Symbol(version, name, kind == "OBJECT"))
        elif not any(hasattr(place, name) for place in (torch, process)):
            found.add(_Symbol("", name, kind == "OBJECT"))
    return found


def _digest(symbols: Iterable[_Symbol]) -> str:
    return hashlib.sha256(repr(sorted(symbols)).encode()).hexdigest()[:16]


def _build(name: str, symbols: set[_Symbol], folder: Path) -> Path:
    ordered = sorted(symbols)
    lines = [symbol.definition(number) for number, symbol in enumerate(ordered)]
    text = _PRELUDE + "".join(lines)
    digest = hashlib.sha256((name + text).encode()).hexdigest()[:16]
    library = folder / f"stand-in-{digest}.so"
    if is_usable(library):
        return library
    compiler = find_compiler(f"what stands in for {name}")
    with building(folder) as place:
        source, script = place / "stand_in.cpp", place / "versions.map"
        source.write_text(text)
        script.write_text(
            "".join(
                f"{version} {{ global: {' '.join(s.name + ';' for s in group)} }};\n"
                for version, group in groupby(ordered, key=lambda symbol: symbol.version)
                if version
            )
        )
        made = place / library.name
        command = [compiler, "-shared", "-fPIC", "-O0", "-w", "-o", str(made), str(source)]
        command += [f"-Wl,-soname,{name}"]
        command += [f"-Wl,--version-script={script}"] * any(symbol.version for symbol in ordered)
        subprocess.run(command, check=True)  # noqa: S603
        seal(made)
        made.replace(library)
    return library
