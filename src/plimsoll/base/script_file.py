"""Finds a script: a file, or an installed Python program such as `torchrun`."""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from plimsoll.base.endings import is_recording_name
from plimsoll.base.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec

_KEPT = "plimsoll-script-"
_DESCRIPTOR = re.compile(r"/dev/(stdin$|fd/)|/proc/[^/]+/fd/")
"""Matches paths such as /dev/fd/63, which name a different file in each process."""
_folders: list[TemporaryDirectory[str]] = []
"""Folders with copies of scripts that came through pipes; deleted when this process ends."""


def script_file(name: str) -> Path:
    """Returns the file of a script.

    Args:
        name: The script's path, or the name of a Python program. plimsoll searches for a program
            in the folder of this process's Python interpreter, and then on the PATH.

    Raises:
        InputError: If there is no such file, if it is a folder or a recording, or if the program
            found is not a Python program.
    """
    path = Path(name)
    if path.is_dir():
        raise InputError(f"{name}: is a directory, not a script")
    if path.exists():
        if is_recording_name(name):
            raise InputError(f"{name}: is a recording, not a script; plimsoll explain reads it")
        return path
    folders = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    program = shutil.which(name, path=folders) if path.name == name else None
    if program is None:
        clone = "; the examples come with a clone of plimsoll" * name.startswith("examples/")
        raise InputError(f"{name}: no such file{clone}")
    if not _is_python(Path(program)):
        raise InputError(f"{program}: is not a Python program, and plimsoll runs no others")
    return Path(program)


def module_file(name: str) -> Path:
    """Returns the file that `python -m` runs for a module's name. Imports nothing.

    Args:
        name: The module's name, such as "trainer.main", or a package whose `__main__` is run.

    Raises:
        InputError: If there is no such module, or it is not Python source.
    """
    folders: Sequence[str] | None = [str(Path.cwd()), *sys.path]
    spec: ModuleSpec | None = None
    parts = name.split(".")
    for count in range(1, len(parts) + 2):
        inside = [*parts, "__main__"][:count]
        if count > len(parts) and folders is None:
            break  # the module is not a package
        spec = None if folders is None else PathFinder.find_spec(".".join(inside), folders)
        if spec is None:
            raise InputError(f"there is no module {'.'.join(inside)}")
        folders = spec.submodule_search_locations
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise InputError(f"{name}: this module has no Python source")
    return Path(spec.origin)


def kept_script(name: str) -> Path:
    """Returns a script's file. If the script comes through a pipe, copies it to a file first.

    Standard input (`-`), a named pipe and a shell's `<(...)` can be read only once. Their text is
    copied to a temporary file, which is deleted when this process ends.

    Args:
        name: As for `script_file`, or `-`.

    Raises:
        InputError: As for `script_file`, or if the text is empty, or cannot be read or copied.
    """
    return _kept("/dev/stdin" if name == "-" else name) if is_stream(name) else script_file(name)


def is_stream(name: str) -> bool:
    """Returns whether a path can be read only once, as a pipe can."""
    if name == "-" or _DESCRIPTOR.match(name):
        return True
    try:
        mode = Path(name).stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def is_kept(script: Path) -> bool:
    """Returns whether a file is a copy that `kept_script` made."""
    return script.parent.name.startswith(_KEPT)


@cache
def _kept(name: str) -> Path:
    try:
        text = Path(name).read_bytes()
        folder = TemporaryDirectory(prefix=_KEPT, ignore_cleanup_errors=True)
        _folders.append(folder)
        path = Path(folder.name) / f"{Path(name).name}.py"
        path.write_bytes(text)
    except OSError as error:
        where = error.filename or name
        raise InputError(f"{where}: the script cannot be read: {error.strerror}") from None
    if not text.strip():
        raise InputError(f"{name}: there is no script in it")
    return path


def _is_python(path: Path) -> bool:
    with path.open("rb") as file:
        begin = file.read(512).splitlines()
    # If the path of the interpreter is long, pip writes a shell script that names the interpreter
    # in its second line.
    return begin[:1] != [] and begin[0].startswith(b"#!") and b"python" in b"".join(begin[:2])
