"""Files that appear whole or not at all, over another only if that is wanted."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from plimsoll.errors import InputError
from plimsoll.files import NewFile

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def new_path(path: str | os.PathLike[str], *, force: bool) -> Iterator[Path]:
    """A path for somebody to write a new file to; in the end the file is at `path`.

    Raises:
        InputError: If there is a file at `path` and `force` is not given.
    """
    path = Path(path)
    if not path.exists():
        yield path
        return
    if path.is_dir():
        raise InputError(f"{path}: is a directory")
    if not force or not path.is_file():
        hint = "; --force overwrites it" if path.is_file() else ""
        raise InputError(f"{path}: exists already and is not overwritten{hint}")
    place = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        yield place
        place.replace(path)
    finally:
        place.unlink(missing_ok=True)


@contextmanager
def new_file(path: str | os.PathLike[str], *, force: bool) -> Iterator[IO[bytes]]:
    """Likewise, opened to write bytes to."""
    with new_path(path, force=force) as place, NewFile(place) as file:
        yield file
