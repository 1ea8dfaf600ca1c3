"""Writes files whole or not at all, and replaces a file only if the caller asks for that.

`NewFile` writes to a temporary file with a random name in the same folder, and renames it at the
end. If anything fails before that, the temporary file is removed.
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
    """Refuses a path at which a file or a link exists.

    Raises:
        InputError: If the path exists.
    """
    if path.is_symlink():
        raise InputError(f"{path}: is a link, and links are not followed")
    if path.exists():
        raise exists_already(path)


def check_can_be_made(path: Path, *, force: bool | None = None) -> None:
    """Checks that `NewFile` can write this file. Call it before long work that makes the file.

    Args:
        path: The path of the file to write.
        force: The argument that `NewFile` will get.

    Raises:
        InputError: If the file exists already, or its folder does not exist or is not writable.
    """
    folder = path.absolute().parent
    if not folder.is_dir():
        raise InputError(f"{path}: cannot be written: {os.strerror(errno.ENOENT)}")
    if not os.access(folder, os.W_OK):
        raise InputError(f"{path}: cannot be written: {os.strerror(errno.EACCES)}")
    _replaces(path, force=force)


class NewFile:
    """A file opened for writing bytes; it appears at `path` when the `with` block ends.

    An OSError in the `with` block becomes an InputError which says that this file cannot be
    written. An OSError that names another file is not changed.

    Args:
        path: The path of the file to write.
        force: True lets the file replace an existing one. False and None forbid that. The error
            suggests --force for False, and another name for None.

    Raises:
        InputError: If the file exists already, or cannot be written.
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
    """Yields a temporary path for a file, and renames that file to `path` at the end."""
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
        if isinstance(error, FileExistsError):  # another process made `path` after the check
            raise exists_already(path) from None
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise InputError(f"{path}: cannot be written: {reason}") from None
    finally:
        unfinished.unlink(missing_ok=True)


def exists_already(path: Path, hint: str = "name another file") -> InputError:
    """Returns the error for a file that cannot be written, because its path exists already."""
    return InputError(f"{path}: exists already and is not overwritten; {hint}")


def _replaces(path: Path, *, force: bool | None) -> bool:
    """Returns True if a file at `path` will be replaced, and False if nothing exists there.

    Raises:
        InputError: If `path` exists, unless it is a file and `force` is True.
    """
    if path.is_dir():
        raise InputError(f"{path}: is a directory")
    replaces = bool(force) and path.is_file()
    if os.path.lexists(path) and not replaces:
        has_force = force is False and path.is_file()
        raise exists_already(path, "--force overwrites it" if has_force else "name another file")
    return replaces


def _give_name(unfinished: Path, path: Path) -> None:
    """Renames a file; never replaces a file, even one that another process makes meanwhile."""
    try:
        os.link(unfinished, path)
    except FileExistsError:
        raise
    # FAT, some network file systems and some containers have no hard links.
    except OSError:
        os.close(os.open(path, _NEW, 0o600))  # reserves the name; fails if it is taken
        try:
            unfinished.replace(path)
        except OSError:
            path.unlink(missing_ok=True)
            raise
