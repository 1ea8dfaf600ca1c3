"""Where a script is: a file, or an installed program in Python, such as `torchrun`."""

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
"""Files that are this process's alone: a script's own process would open another one."""
_folders: list[TemporaryDirectory[str]] = []
"""Those of kept scripts; they are removed when this process ends."""


def script_file(name: str) -> Path:
    """The file of a script.

    Args:
        name: Its path, or the name of a program in Python: beside this Python, or on the PATH.

    Raises:
        InputError: If there is none, or it is no script.
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
        raise InputError(f"{program}: is not a program in Python; only these can be run")
    return Path(program)


def module_file(name: str) -> Path:
    """The file that `python -m` runs for a module's name. Nothing of its packages is run.

    Args:
        name: Such as "trainer.main"; a package's own is its `__main__`.

    Raises:
        InputError: If there is none, or it is no text of Python.
    """
    folders: Sequence[str] | None = [str(Path.cwd()), *sys.path]
    spec: ModuleSpec | None = None
    parts = name.split(".")
    for count in range(1, len(parts) + 2):
        inside = [*parts, "__main__"][:count]
        if count > len(parts) and folders is None:
            break  # the module is no package
        spec = None if folders is None else PathFinder.find_spec(".".join(inside), folders)
        if spec is None:
            raise InputError(f"there is no module {'.'.join(inside)}")
        folders = spec.submodule_search_locations
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise InputError(f"{name}: is no module with a text in Python")
    return Path(spec.origin)


def kept_script(name: str) -> Path:
    """The file of a script that is read several times, also where it comes through a pipe.

    Standard input (`-`), a named pipe and a shell's `<(...)` can be read once. Their text is kept
    in a temporary file until this process ends.

    Args:
        name: As for `script_file`, or `-`.

    Raises:
        InputError: As `script_file`, or if there is no text, or it cannot be read or kept.
    """
    return _kept("/dev/stdin" if name == "-" else name) if is_stream(name) else script_file(name)


def is_stream(name: str) -> bool:
    """Whether this can be read once only."""
    if name == "-" or _DESCRIPTOR.match(name):
        return True
    try:
        mode = Path(name).stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def is_kept(script: Path) -> bool:
    """Whether this is the text of what could be read once only."""
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
    # Where the path of its interpreter is long, pip lets a shell start it: in the second line.
    return begin[:1] != [] and begin[0].startswith(b"#!") and b"python" in b"".join(begin[:2])
