"""Builds the library of the simulated GPU for releases of PyTorch; the x86-64 wheels contain it.

The compiler is zig's clang, with the headers of an old glibc. The C++ standard library must be
libstdc++, because PyTorch's own libraries use it. The headers of libstdc++ come from this machine's
g++. The compiled functions of libstdc++ come from the user's machine, when the library is loaded.
The user's libstdc++ may be as old as the glibc whose headers are used here. So `wheels.py` runs
auditwheel, which refuses a library that needs a newer libstdc++.

    python packaging/prebuilt.py 2.14.1 2.15.0
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from plimsoll.base.errors import InputError
from plimsoll.torch.building.compiler import compile_library, digest_of, find_compiler
from plimsoll.torch.building.prebuilt import file_name
from plimsoll.torch.simulated.library import SIMULATED_GPU

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
from zig import GLIBC, zig

from tests.oracle.wheels import unpack

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "prebuilt"
_LICENCE = "torch-*.dist-info/licenses/LICENSE"
_PARTS = re.compile(
    r"torch/(include/.*|lib/lib(c10|torch|torch_cpu)\.so)|torch-[^/]*/licenses/LICENSE"
)
_OLD_GLIBC = Path(__file__).parent / "old_glibc"
_FROM_PYTHON = re.compile(r"Py[A-Z_]\w+")


def prebuild(release: str) -> Path:
    """Returns the library for a release of PyTorch; builds it if it does not exist or is too old.

    Raises:
        InputError: If the library does not compile.
        SystemExit: If pip finds no wheel of the release, or PyTorch lacks a name that the library
            asks for.
    """
    library = FOLDER / file_name(SIMULATED_GPU.name, release, digest_of(SIMULATED_GPU))
    if not library.exists() or library.stat().st_mtime < Path(__file__).stat().st_mtime:
        torch = unpack(release, _PARTS, FOLDER) / "torch"
        with tempfile.TemporaryDirectory(dir=FOLDER) as place:
            made = Path(place) / library.name
            build(torch, made)
            made.replace(library)
    return library


def licence(release: str) -> str:
    """Returns the licence of a release of PyTorch.

    The wheel must include it, because the library contains inline functions of this release.

    Raises:
        SystemExit: If pip finds no wheel of the release.
    """
    (file,) = unpack(release, _PARTS, FOLDER).glob(_LICENCE)
    return file.read_text()


def build(torch: Path, library: Path) -> None:
    """Builds the library against the PyTorch in a folder.

    Args:
        torch: The folder with PyTorch's headers and libraries.
        library: The file to make, in an empty folder.

    Raises:
        InputError: If the library does not compile.
        SystemExit: If PyTorch lacks a name that the library asks for.
    """
    # The option -fclang-abi-compat=17 mangles names of constrained templates as g++ does.
    compiler = [str(zig()), "cc", "-target", f"x86_64-linux-gnu.{GLIBC}", "-fclang-abi-compat=17"]
    compiler += [f"-I{folder}" for folder in (_OLD_GLIBC, *_headers_of_libstdcxx())]
    # PyTorch's error messages contain paths of source files. The option -ffile-prefix-map removes
    # this machine's folders from them.
    folders = {ROOT / "src": "", torch: "torch", library.parent: ""}
    compiler += [f"-ffile-prefix-map={folder}={name}" for folder, name in folders.items()]
    linking = ["-Wl,--strip-all", _of_gxx("libstdc++.so.6"), _of_gxx("libgcc_s.so.1")]
    compile_library(SIMULATED_GPU, library, compiler, torch, linking, lambda _: None)
    libraries = [torch / "lib" / f"lib{name}.so" for name in SIMULATED_GPU.libraries]
    there = set().union(*(_names(one, "--defined-only") for one in libraries))
    asked = {name for name in _names(library, "--undefined-only") if "@" not in name}
    missing = sorted(name for name in asked - there if not _FROM_PYTHON.fullmatch(name))
    if missing:
        sys.exit(f"{library.name} asks for names that PyTorch does not have: {', '.join(missing)}")


def _gxx(*arguments: str) -> str:
    """Returns what this machine's g++ prints."""
    command = [find_compiler("the prebuilt library"), *arguments]
    done = subprocess.run(  # noqa: S603
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )
    return done.stdout + done.stderr


def _headers_of_libstdcxx() -> list[str]:
    """Returns the folders of the C++ library's headers."""
    return re.findall(r"^ (\S+/c\+\+/\S+)$", _gxx("-E", "-x", "c++", "-", "-v"), re.MULTILINE)


def _of_gxx(name: str) -> str:
    """Returns the path of a library that comes with g++."""
    return str(Path(_gxx(f"-print-file-name={name}").strip()).resolve())


def _names(library: Path, which: str) -> set[str]:
    """Returns the symbols that `nm -D` lists with the option `which`, except weak symbols."""
    listed = subprocess.run(  # noqa: S603
        ["nm", "-D", which, str(library)],  # noqa: S607
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    rows = [line.split() for line in listed.stdout.splitlines()]
    return {row[-1] for row in rows if row[-2] not in ("w", "v")}


def main() -> None:
    """Builds the libraries for the named releases, and prints their files and sizes."""
    for release in sys.argv[1:]:
        try:
            library = prebuild(release)
        except InputError as error:
            sys.exit(str(error))
        print(f"{library.stat().st_size / 1e6:6.1f} MB  {library}", flush=True)


if __name__ == "__main__":
    main()
