"""Where a script is: a file, or an installed program in Python, such as `torchrun`."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from plimsoll.endings import is_recording_name
from plimsoll.errors import InputError


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
        raise InputError(f"{name}: no such file")
    if not _is_python(Path(program)):
        raise InputError(f"{program}: is not a program in Python; only these can be run")
    return Path(program)


def _is_python(path: Path) -> bool:
    with path.open("rb") as file:
        begin = file.read(512).splitlines()
    # Where the path of its interpreter is long, pip lets a shell start it: in the second line.
    return begin[:1] != [] and begin[0].startswith(b"#!") and b"python" in b"".join(begin[:2])
