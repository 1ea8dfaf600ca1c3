"""The native libraries that are compiled against the installed PyTorch: built, cached, loaded.

There are two: one gives PyTorch a simulated CUDA device, the other puts plimsoll's allocator under
PyTorch on a real one (the bridge). Each is compiled once and kept in the user's cache folder, under
a name that holds PyTorch's version and a digest of the sources.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from plimsoll import _core
from plimsoll.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

_Row = TypeVar("_Row", bound=ctypes.Structure)

_HERE = Path(__file__).parent
_INCLUDE = _HERE.parent / "include"
# Only our own names: other compilers' inline functions must not replace those of PyTorch.
_EXPORTS = _HERE / "csrc" / "exports.map"
_FLAGS = ["-std=c++20", "-fPIC", "-fvisibility=hidden", "-w"]


@dataclass(frozen=True)
class Recipe:
    """How a library is made.

    Attributes:
        name: Of its file.
        purpose: What it is, for people.
        sources: The folder of its sources.
        flags: For the compiler, besides those of all libraries.
        libraries: What of PyTorch it is linked to.
        needs_cuda: Whether it includes the headers of CUDA's runtime.
    """

    name: str
    purpose: str
    sources: Path
    flags: tuple[str, ...]
    libraries: tuple[str, ...]
    needs_cuda: bool


SIMULATED_GPU = Recipe(
    name="simulated-cuda",
    purpose="the simulated GPU",
    sources=_HERE / "csrc",
    flags=("-O1",),
    # libtorch brings a CUDA build's libtorch_cuda in before ours: its registrations first.
    libraries=("torch", "torch_cpu", "c10"),
    needs_cuda=False,
)
BRIDGE = Recipe(
    name="bridge",
    purpose="the bridge to PyTorch's allocator",
    sources=_HERE / "bridge",
    flags=("-O2",),
    libraries=("torch_cpu", "c10", "c10_cuda"),
    needs_cuda=True,
)


class DeviceProperties(ctypes.Structure):
    """What rules depend on; the layout is that of DeviceProperties in csrc/runtime.h."""

    _fields_ = [
        ("multiprocessors", ctypes.c_int32),
        ("major", ctypes.c_int32),
        ("minor", ctypes.c_int32),
        ("max_threads_per_multiprocessor", ctypes.c_int32),
        ("bytes_per_ns", ctypes.c_double),
        ("flops_per_ns", ctypes.c_double),
        ("tensor_flops_per_ns", ctypes.c_double),
        ("copy_bytes_per_ns", ctypes.c_double),
    ]


class Site(ctypes.Structure):
    """Who asked for memory; the layout is that of Site in csrc/runtime.h."""

    _fields_ = [
        ("stack", ctypes.c_uint32),
        ("operation", ctypes.c_uint32),
        ("role", ctypes.c_uint8),
        ("phase", ctypes.c_uint8),
        ("grad_enabled", ctypes.c_bool),
        ("reserved", ctypes.c_bool),
    ]


class Assumption(ctypes.Structure):
    """What was assumed; the layout is that of Assumption in csrc/runtime.h."""

    _fields_ = [
        ("stack", ctypes.c_uint32),
        ("operation", ctypes.c_uint32),
        ("what", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
    ]


@cache
def torch_folder() -> Path:
    """Where PyTorch is installed; it is not imported.

    Raises:
        InputError: If it is not installed.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise InputError("PyTorch is not installed here: pip install 'torch>=2.9'")
    return Path(spec.origin).parent


@cache
def torch_version() -> tuple[int, int]:
    """Major and minor version of the installed PyTorch.

    Raises:
        InputError: If it is not installed, or older than 2.9.
    """
    torch_folder()
    text = importlib.metadata.version("torch")
    major, minor = _as_numbers(text)
    if (major, minor) < (2, 9):
        raise InputError(f"PyTorch {text} is too old: 2.9 or later is needed")
    return major, minor


def engine_version() -> str:
    """The version whose rules serve the installed PyTorch: its own, or the newest that is known.

    Raises:
        InputError: As `torch_version`.
    """
    major, minor = min(torch_version(), _as_numbers(_core.NEWEST_VERSION))
    return f"{major}.{minor}"


def is_cuda_build() -> bool:
    """Whether the installed PyTorch can use NVIDIA GPUs; it is not imported.

    Raises:
        InputError: If it is not installed.
    """
    return (torch_folder() / "lib" / "libc10_cuda.so").exists()


def _as_numbers(version: str) -> tuple[int, int]:
    major, minor = (int(part) for part in version.split(".")[:2])
    return major, minor


def build(recipe: Recipe = SIMULATED_GPU) -> Path:
    """The library's file, compiled if it is not in the cache.

    Raises:
        InputError: If there is no compiler, or it fails.
    """
    sources = sorted(recipe.sources.rglob("*.cpp"))
    digest = hashlib.sha256(" ".join([*_FLAGS, *recipe.flags]).encode())
    for path in [
        _EXPORTS,
        *sources,
        *sorted(recipe.sources.rglob("*.h")),
        *sorted(_INCLUDE.rglob("*.h")),
    ]:
        digest.update(path.read_bytes())
    torch_version()
    name = importlib.metadata.version("torch")
    digest.update(str(torch_folder()).encode())
    folder = _cache_folder()
    library = folder / f"{recipe.name}-torch{name}-{digest.hexdigest()[:16]}.so"
    if not library.exists():
        with (folder / "building.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the first builds, the others wait for it
            if not library.exists():
                _compile(recipe, sources, library)
    return library


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "plimsoll"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise InputError(
            f"no cache folder {folder}: {error.strerror}; set XDG_CACHE_HOME"
        ) from None
    return folder


def _cuda_includes() -> list[Path]:
    """Folders with the headers of CUDA's runtime: PyTorch's packages have them, or a toolkit."""
    packages = torch_folder().parent
    folders = [*sorted(packages.glob("nvidia/cu[0-9]*/include"))]
    folders += sorted(packages.glob("nvidia/cuda_*/include"))
    folders.append(packages / "triton/backends/nvidia/include")  # with what the first ones lack
    folders.append(Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include")
    found = [
        folder
        for folder in folders
        if (folder / "cuda_runtime_api.h").exists() or (folder / "crt").exists()
    ]
    if not found:
        raise InputError(
            "the headers of CUDA's runtime are missing: install NVIDIA's CUDA toolkit and set "
            "CUDA_HOME"
        )
    return found


def _compile(recipe: Recipe, sources: list[Path], library: Path) -> None:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise InputError(
            f"{recipe.purpose} needs a C++20 compiler once, to be built against the installed "
            "PyTorch: install g++ 11 or later, or set CXX"
        )
    torch = torch_folder()
    includes = [f"-I{_INCLUDE}", f"-I{torch / 'include'}"]
    includes.append(f"-I{torch / 'include/torch/csrc/api/include'}")
    if recipe.needs_cuda:
        includes += [f"-I{folder}" for folder in _cuda_includes()]
    version = importlib.metadata.version("torch")
    print(f"plimsoll: building {recipe.purpose} for PyTorch {version}, once", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        objects = [Path(folder) / f"{number}.o" for number in range(len(sources))]

        def compile_one(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
            flags = [*_FLAGS, *recipe.flags, *includes]
            command = [compiler, "-c", *flags, "-o", str(target), str(source)]
            return subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            results = list(pool.map(compile_one, sources, objects))
        made = Path(folder) / library.name
        if all(result.returncode == 0 for result in results):
            link = [compiler, "-shared", "-o", str(made), *map(str, objects)]
            link += ["-Wl,--no-as-needed", f"-L{torch / 'lib'}"]
            link += [f"-l{name}" for name in recipe.libraries]
            link += [f"-Wl,-rpath,{torch / 'lib'}", f"-Wl,--version-script={_EXPORTS}"]
            results = [subprocess.run(link, capture_output=True, text=True, check=False)]  # noqa: S603
        for result in results:
            if result.returncode != 0:
                lines = result.stderr.splitlines()
                first = next((line for line in lines if "error" in line), "it gave no reason")
                raise InputError(f"{compiler} could not build {recipe.purpose}: {first}")
        made.replace(library)


class LateRole(ctypes.Structure):
    """A role that became clear later; the layout is that of LateRole in csrc/runtime.h."""

    _fields_ = [
        ("serial", ctypes.c_uint64),
        ("device", ctypes.c_int32),
        ("role", ctypes.c_int32),
    ]


class Counter(ctypes.Structure):
    """A counter as PyTorch has them; the layout is that of Counter in csrc/memory.h."""

    _fields_ = [(name, ctypes.c_int64) for name in ("current", "peak", "allocated", "freed")]


class PinnedStatistics(ctypes.Structure):
    """Of pinned memory; the layout is that of PinnedStatistics in csrc/memory.h."""

    _fields_ = [
        (name, Counter)
        for name in ("allocations", "active_requests", "allocated_bytes", "active_bytes")
    ]


class Library:
    """The loaded library of the simulated GPU. It is loaded once a process, before PyTorch."""

    def __init__(self, path: Path) -> None:
        lib = ctypes.CDLL(str(path))
        self.lib = lib
        lib.plimsoll_current_stream.restype = ctypes.c_int64
        lib.plimsoll_set_stream.argtypes = [ctypes.c_int, ctypes.c_int64]
        lib.plimsoll_name.restype = ctypes.c_char_p
        for rows in ("sites", "assumptions", "late_roles"):
            copy = getattr(lib, f"plimsoll_copy_{rows}")
            copy.restype = ctypes.c_size_t
            copy.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        lib.plimsoll_pin.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        lib.plimsoll_unpin.argtypes = [ctypes.c_void_p]

    def start(
        self,
        api: int,
        version: tuple[int, int],
        engines: list[int],
        properties: list[DeviceProperties],
    ) -> None:
        """Hand over the engines, one a device."""
        count = len(engines)
        handles = (ctypes.c_void_p * count)(*engines)
        table = (DeviceProperties * count)(*properties)
        number = version[0] * 100 + version[1]
        if self.lib.plimsoll_start(ctypes.c_void_p(api), number, count, handles, table) != 0:
            raise InputError("the cached library is of another plimsoll; remove it from the cache")

    def call_back(
        self,
        first_use: Callable[[int], None],
        out_of_memory: Callable[[int, int], None],
    ) -> None:
        """Be called when a device is used first, and when it has not what is asked for.

        Args:
            first_use: Called with the device.
            out_of_memory: Called with the device and the bytes asked for.
        """
        device, size = ctypes.c_int, ctypes.c_uint64
        self._callbacks = (
            ctypes.CFUNCTYPE(None, device)(first_use),
            ctypes.CFUNCTYPE(None, device, size)(out_of_memory),
        )  # kept as long as the library calls them
        self.lib.plimsoll_set_callbacks(*self._callbacks)

    def replace_engine(self, device: int, engine: int) -> None:
        """Let another engine serve a device that has not been used."""
        self.lib.plimsoll_replace_engine(device, ctypes.c_void_p(engine))

    def install(self, operations: list[str]) -> None:
        """Put the simulated kernels in place, after PyTorch is loaded."""
        names = (ctypes.c_char_p * len(operations))(*(name.encode() for name in operations))
        self.lib.plimsoll_install(names, len(operations))

    def name(self, number: int) -> str:
        """A name by its number."""
        return str(self.lib.plimsoll_name(number).decode())

    def sites(self) -> list[Site]:
        """All sites so far, by number."""
        return _read(self.lib.plimsoll_copy_sites, Site)

    def assumptions(self) -> list[Assumption]:
        """All assumptions so far."""
        return _read(self.lib.plimsoll_copy_assumptions, Assumption)

    def pinned_statistics(self) -> PinnedStatistics:
        """What is pinned, and was."""
        statistics = PinnedStatistics()
        self.lib.plimsoll_pinned_statistics(ctypes.byref(statistics))
        return statistics

    def late_roles(self) -> list[LateRole]:
        """All roles that became clear after the allocation, in order."""
        return _read(self.lib.plimsoll_copy_late_roles, LateRole)


def _read(copy: Any, kind: type[_Row]) -> list[_Row]:
    """All rows; other threads may be adding some."""
    rows = (kind * 0)()
    while (count := copy(rows, len(rows))) > len(rows):
        rows = (kind * count)()
    return list(rows)
