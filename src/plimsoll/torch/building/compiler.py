"""Compiles native libraries against the installed PyTorch, once, and caches them.

A `Recipe` describes a library. The name of the library's file contains PyTorch's version and a
digest of everything the library is made from. plimsoll's wheel contains some libraries that are
built already: see `prebuilt`.

PyTorch's headers take longer to compile than all of plimsoll's sources. So each folder of sources
is compiled as one translation unit: a file that includes all its sources.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.base.errors import InputError
from plimsoll.base.systems import require_linux
from plimsoll.torch.building import prebuilt, tables, versions
from plimsoll.torch.building.cache import building, cache_folder, is_usable, seal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

_INCLUDE = Path(__file__).parents[2] / "include"
# Each library exports only plimsoll's names. It also contains copies of inline functions from
# PyTorch's headers. If it exported these copies, PyTorch's libraries could call them in place of
# their own, although another compiler built those libraries.
_EXPORTS = Path(__file__).parent / "exports.map"
_FLAGS = ("-std=c++20", "-fPIC", "-fvisibility=hidden", "-w", "-pipe")
_SECONDS_BETWEEN_NEWS = 10


@dataclass(frozen=True)
class Recipe:
    """The sources and settings from which a library is built.

    Attributes:
        name: The beginning of the file's name.
        purpose: The library's purpose, for errors and lines of progress.
        sources: The folder of its sources. Subfolders may contain sources too.
        flags: Compiler flags in addition to those of all libraries.
        libraries: The libraries of PyTorch that it is linked to.
        needs_cuda: Whether its sources include the headers of CUDA's runtime.
        check: A Python module that tests the library. plimsoll runs it after a build only if the
            installed PyTorch is newer than `versions.NEWEST`. The module gets the library's file as
            an argument. If the library does not work, the module fails and prints the reason as its
            last line.
        tables: The folder of its data files. The sources include NAME.txt or NAME.csv as NAME.inc.
        exports: The linker's script with the names that the library exports.
    """

    name: str
    purpose: str
    sources: Path
    flags: tuple[str, ...]
    libraries: tuple[str, ...]
    needs_cuda: bool
    check: str | None = None
    tables: Path | None = None
    exports: Path = _EXPORTS


def load(recipe: Recipe) -> ctypes.CDLL:
    """Loads a library, and builds it if neither the package nor the cache has it.

    Raises:
        InputError: Like `build`.
    """
    library = build(recipe)
    for name in recipe.libraries:  # a prebuilt library does not know where PyTorch's libraries are
        ctypes.CDLL(str(versions.torch_folder() / "lib" / f"lib{name}.so"))
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        if library == _place_of(recipe):
            raise
        print(f"plimsoll: {library} is not used: {error}", file=sys.stderr, flush=True)
        return ctypes.CDLL(str(_build_here(recipe)))


def find_built(recipe: Recipe) -> Path | None:
    """Returns the file of a library if the package or the cache has it.

    Raises:
        InputError: If PyTorch is missing or too old, or there is no safe folder for the library.
    """
    library = prebuilt.find(recipe.name, digest_of(recipe))
    if library is not None:
        return library
    library = _place_of(recipe)
    return library if is_usable(library) else None


def build(recipe: Recipe) -> Path:
    """Returns the file of a library; builds it if neither the package nor the cache has it.

    A line on stderr announces the build.

    Raises:
        InputError: If this is not Linux, if there is no compiler or it fails, or if there is no
            safe folder for the library. Also if PyTorch is newer than `versions.NEWEST` and the
            library was built but fails its test.
    """
    require_linux(recipe.purpose)
    found = find_built(recipe)
    return _build_here(recipe) if found is None else found


def _build_here(recipe: Recipe) -> Path:
    """Returns the file of a library in the cache; builds it if it is not there."""
    library = _place_of(recipe)
    if is_usable(library):
        return library
    with building(library.parent) as place:
        if not is_usable(library):  # false if another process has built it by now
            library.unlink(missing_ok=True)
            made = place / library.name
            with _ended_by_signals():
                _compile(recipe, made)
                _check(recipe, made)
            seal(made)
            made.replace(library)
    return library


def _place_of(recipe: Recipe) -> Path:
    """Returns the path of a library in the cache."""
    versions.torch_version()
    # The library is linked to the PyTorch in `torch_folder`, so the digest covers that path too.
    made_of = digest_of(recipe) + str(versions.torch_folder())
    digest = hashlib.sha256(made_of.encode()).hexdigest()
    return cache_folder() / f"{recipe.name}-torch{versions.torch_build()}-{digest[:16]}.so"


def digest_of(recipe: Recipe) -> str:
    """Returns a digest of a library's sources and flags.

    The digest does not depend on where the sources are.
    """
    flags = " ".join([*_FLAGS, *recipe.flags]).replace(str(recipe.sources), "")
    digest = hashlib.sha256(flags.encode())
    folders = [recipe.sources, _INCLUDE]
    files = [recipe.exports]
    if recipe.tables is not None:
        folders.append(recipe.tables)
        files.append(Path(tables.__file__))
    files += [path for top in folders for path in sorted(top.rglob("*"))]
    for path in files:
        if path.is_file():
            digest.update(f"{path.name}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def _units(recipe: Recipe, place: Path) -> list[Path]:
    """Writes a translation unit for each folder: a file that includes all sources of the folder."""
    folders = sorted({path.parent for path in recipe.sources.rglob("*.cpp")})
    units = []
    for folder in folders:
        unit = place / f"{folder.name}.cpp"
        unit.write_text("".join(f'#include "{path}"\n' for path in sorted(folder.glob("*.cpp"))))
        units.append(unit)
    return units


def compiler_for(recipe: Recipe) -> str:
    """Returns the path of a C++ compiler that could build a library.

    Raises:
        InputError: If there is no compiler.
    """
    return find_compiler(recipe.purpose, prebuilt.note_of_releases(recipe.name))


def find_compiler(purpose: str, note: str = "") -> str:
    """Returns the path of a C++ compiler.

    Args:
        purpose: The purpose of the library, as messages show it.
        note: The end of the message if there is no compiler.

    Raises:
        InputError: If there is no compiler.
    """
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++"]
    compiler = next((found for found in map(shutil.which, names) if found is not None), None)
    if compiler is None:
        raise InputError(
            f"{purpose} needs a C++20 compiler once, to be built against the installed "
            f"PyTorch: install g++ 11 or later, or set CXX{note}"
        )
    return os.path.abspath(compiler)  # noqa: PTH100  it is called from another folder


def _compile(recipe: Recipe, library: Path) -> None:
    """Compiles a library for the installed PyTorch with this machine's compiler."""
    compiler = compiler_for(recipe)
    torch = versions.torch_folder()
    news = _News(
        f"building {recipe.purpose} for PyTorch {versions.torch_build()}, once",
        f"about a minute{prebuilt.note_of_releases(recipe.name)}",
    )
    rpath = f"-Wl,-rpath,{torch / 'lib'}"
    compile_library(recipe, library, [compiler], torch, [rpath], news.say_now_and_then)
    news.say("done")


def compile_library(
    recipe: Recipe,
    library: Path,
    compiler: Sequence[str],
    torch: Path,
    linking: Sequence[str],
    tell: Callable[[str], None],
) -> None:
    """Compiles a library.

    Args:
        recipe: The library's inputs.
        library: The file to make, in an empty folder.
        compiler: The command of a C++ compiler, with arguments for every call.
        torch: The folder of PyTorch, with its headers and libraries.
        linking: Further arguments for the linker.
        tell: A function that is called often, with the progress.

    Raises:
        InputError: If the compiler fails.
    """
    includes = [_INCLUDE, torch / "include", torch / "include/torch/csrc/api/include"]
    if recipe.needs_cuda:
        includes += _cuda_includes()
    flags = [*_FLAGS, *recipe.flags, *(f"-I{folder}" for folder in includes)]
    if recipe.tables is not None:
        tables.write_includes(recipe.tables, library.parent)
        flags.append(f"-I{library.parent}")
    units = _units(recipe, library.parent)
    objects = [unit.with_suffix(".o") for unit in units]
    steps = [
        [*compiler, "-c", *flags, "-o", str(target), str(unit)]
        for unit, target in zip(units, objects, strict=True)
    ]
    link = [*compiler, "-shared", "-o", str(library), *map(str, objects)]
    link += ["-Wl,--no-as-needed", f"-L{torch / 'lib'}"]
    link += [f"-l{name}" for name in recipe.libraries]
    link += [f"-Wl,--version-script={recipe.exports}", *linking]
    for commands in (steps, [link]):
        if problem := _run(commands, library.parent, tell):
            raise InputError(f"{compiler[0]} could not build {recipe.purpose}: {problem}")


class _News:
    """Prints lines on stderr: one that names the current work, then its progress at intervals.

    Args:
        what: The current work.
        expected: The usual duration.
    """

    def __init__(self, what: str, expected: str) -> None:
        self._what = what
        self._expected = expected
        self._began = time.monotonic()
        self._last: float | None = None

    def say(self, state: str) -> None:
        """Prints the progress."""
        self._last = time.monotonic()
        self._print(f"{self._what}: {state}, {round(self._last - self._began)} s")

    def say_now_and_then(self, state: str) -> None:
        """Prints the progress if an interval has passed; the first call prints the current work."""
        if self._last is None:
            self._last = time.monotonic()
            self._print(f"{self._what}, {self._expected}")
        elif time.monotonic() - self._last >= _SECONDS_BETWEEN_NEWS:
            self.say(state)

    def _print(self, line: str) -> None:
        print(f"plimsoll: {line}", file=sys.stderr, flush=True)


def _run(commands: Sequence[list[str]], place: Path, tell: Callable[[str], None]) -> str | None:
    """Runs compiler commands, at most one per processor at a time. Returns the first error."""
    waiting = list(commands)
    running: list[tuple[subprocess.Popen[bytes], Path]] = []
    done = 0
    try:
        while waiting or running:
            while waiting and len(running) < (os.cpu_count() or 1):
                output = place / f"{len(commands) - len(waiting)}.txt"
                with output.open("wb") as file:
                    process = subprocess.Popen(  # noqa: S603
                        [*_WITH_PARENT, *waiting.pop(0)], stdout=file, stderr=file, cwd=place,
                        env={**os.environ, "TMPDIR": str(place)}, start_new_session=True,
                        preexec_fn=_ending_with_parent(),
                    )  # fmt: skip
                running.append((process, output))
            time.sleep(0.05)
            tell(f"{done} of {len(commands)} parts compiled")
            for process, output in [entry for entry in running if entry[0].poll() is not None]:
                if process.returncode != 0:
                    return _first_error(output.read_text(errors="replace"))
                running.remove((process, output))
                done += 1
    finally:
        for process, _ in running:
            _kill(process)
    return None


# A shell that runs a compiler. When plimsoll's process dies, the shell gets SIGTERM and kills the
# compiler with all its processes.
_WITH_PARENT = ("/bin/sh", "-c", 'trap "kill -9 0" TERM; "$@" & wait $!', "sh")
_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl


def _ending_with_parent() -> Callable[[], None]:
    """Returns a function that makes the calling process get SIGTERM when its parent dies."""
    return partial(ctypes.CDLL(None).prctl, _SET_PARENT_DEATH_SIGNAL, int(signal.SIGTERM))


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kills a compiler and the processes that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _first_error(output: str) -> str:
    lines = output.splitlines()
    return next((line for line in lines if "error" in line), "it gave no reason")


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Turns signals that would end the process into SystemExit, so temporary files are removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    taken = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) == signal.SIG_DFL]
    for number in taken:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _check(recipe: Recipe, library: Path) -> None:
    """Tests a library under a PyTorch with which plimsoll was not tested. Raises if it fails."""
    if recipe.check is None or versions.is_known():
        return
    command = [sys.executable, "-P", "-m", recipe.check, str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise InputError(
            f"{recipe.purpose} does not work under PyTorch {versions.torch_build()}, which is "
            f"newer than what is known; install torch=={versions.text(versions.NEWEST)}.*: {last}"
        )


def _cuda_includes() -> list[Path]:
    """Returns the folders of CUDA's runtime headers, from Python packages or a CUDA toolkit."""
    packages = versions.torch_folder().parent
    folders = [*sorted(packages.glob("nvidia/cu[0-9]*/include"))]
    folders += sorted(packages.glob("nvidia/cuda_*/include"))
    # Triton's package has headers that NVIDIA's packages may lack.
    folders.append(packages / "triton/backends/nvidia/include")
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
