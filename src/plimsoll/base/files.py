"""Writing files: whole or not at all, over another only if wanted, with the user's rights only.

A new file is written beside its place, under a name that nobody else uses, and gets its own name in
the end. If anything fails before, it is removed.
"""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from plimsoll.base.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL


def check_is_new(path: Path) -> None:
    """Look whether a file can be made here that is nobody's yet; nothing is written through a link.

    Raises:
        InputError: If there is something of this name.
    """
    if path.is_symlink():
        raise InputError(f"{path}: is a link, and links are not followed")
    if path.exists():
        raise InputError(f"{path}: exists already and is not overwritten")


def check_can_be_made(path: Path, *, force: bool | None = None) -> None:
    """Look whether `NewFile` would begin, before long work whose result is to be in the file.

    Args:
        path: Where it is wanted.
        force: As for `NewFile`.

    Raises:
        InputError: If there is such a file already, or no folder for it that one may write in.
    """
    folder = path.absolute().parent
    if not folder.is_dir():
        raise InputError(f"{path}: cannot be written: {os.strerror(errno.ENOENT)}")
    if not os.access(folder, os.W_OK):
        raise InputError(f"{path}: cannot be written: {os.strerror(errno.EACCES)}")
    _replaces(path, force=force)


class NewFile:
    """A file opened to write bytes to; in the end it is at `path`.

    What a `with` block raises as an OSError that names no other file is taken for one of writing.

    Args:
        path: Where it is wanted.
        force: Whether it may replace a file; None where nobody can ask for that.

    Raises:
        InputError: If there is such a file already, or it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], *, force: bool | None = None) -> None:
        self._path = Path(path)
        self._force = force

    def __enter__(self) -> IO[bytes]:
        with ExitStack() as stack:
            place = stack.enter_context(_unfinished(self._path, force=self._force))
            file = stack.enter_context(os.fdopen(os.open(place, _NEW, 0o600), "wb"))
            self._stack = stack.pop_all()
        return file

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, traceback)


@contextmanager
def _unfinished(path: Path, *, force: bool | None) -> Iterator[Path]:
    """Where a file is written that gets its name in the end."""
    replaces = _replaces(path, force=force)
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        yield unfinished
        if replaces:
            unfinished.replace(path)
        else:
            _give_name(unfinished, path)
    except OSError as error:
        if error.filename not in (None, str(path), str(unfinished)):
            raise
        if isinstance(error, FileExistsError):  # since it was looked for
            raise InputError(f"{path}: exists already and is not overwritten") from None
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise InputError(f"{path}: cannot be written: {reason}") from None
    finally:
        unfinished.unlink(missing_ok=True)


def _replaces(path: Path, *, force: bool | None) -> bool:
    """Whether there is a file that gives way."""
    if path.is_dir():
        raise InputError(f"{path}: is a directory")
    replaces = bool(force) and path.is_file()
    if os.path.lexists(path) and not replaces:
        hint = "; --force overwrites it" if force is False and path.is_file() else ""
        raise InputError(f"{path}: exists already and is not overwritten{hint}")
    return replaces


def _give_name(unfinished: Path, path: Path) -> None:
    """Never over another file, even one that appears at this moment."""
    try:
        os.link(unfinished, path)
    except FileExistsError:
        raise
    except OSError:  # no hard links here, as on FAT, and in some networks and containers
        os.close(os.open(path, _NEW, 0o600))  # now it is ours
        try:
            unfinished.replace(path)
        except OSError:
            path.unlink(missing_ok=True)
            raise
