"""Writing files: whole or not at all, over another only if wanted, with the user's rights only.

A new file is written beside its place, under a name that nobody else uses, and gets its own name in
the end. If anything fails before, it is removed.
"""

from __future__ import annotations

import os
import secrets
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from plimsoll.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType


def check_ending(path: str | os.PathLike[str], *endings: str, what: str) -> None:
    """Refuse a name that says that something else is in a file than will be; one may say nothing.

    Args:
        path: Where the file is wanted.
        endings: How its name may end, with the dot; the usual one first.
        what: What will be in it.

    Raises:
        InputError: If it ends otherwise.
    """
    path = Path(path)
    if path.suffix and not path.name.lower().endswith(endings):
        named = path.with_suffix(endings[0]).name
        raise InputError(f"{path}: {what} is a {' or '.join(endings)} file; name it {named}")


@contextmanager
def new_path(path: str | os.PathLike[str], *, force: bool | None = None) -> Iterator[Path]:
    """A path for somebody to write a new file to; in the end the file is at `path`.

    Args:
        path: Where the file is wanted.
        force: Whether it may replace a file; None where nobody can ask for that.

    Raises:
        InputError: If there is such a file already, or none can be put there.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path}: is a directory")
    replaces = bool(force) and path.is_file()
    if path.exists() and not replaces:
        hint = "; --force overwrites it" if force is False and path.is_file() else ""
        raise InputError(f"{path}: exists already and is not overwritten{hint}")
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        yield unfinished
        with _told(path):
            if replaces:
                unfinished.replace(path)
            else:
                _give_name(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


class NewFile:
    """Likewise, a file opened to write bytes to.

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
            place = stack.enter_context(new_path(self._path, force=self._force))
            file = stack.enter_context(_opened(place, self._path))
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
def _opened(place: Path, path: Path) -> Iterator[IO[bytes]]:
    with _told(path):
        file = os.fdopen(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    try:
        yield file
    finally:
        with _told(path):
            file.close()


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError:  # since it was looked for
        raise InputError(f"{path}: exists already and is not overwritten") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None


def _give_name(unfinished: Path, path: Path) -> None:
    """Never over another file, even one that appears at this moment."""
    try:
        os.link(unfinished, path)
    except FileExistsError:
        raise
    except OSError:  # no hard links here, as on FAT, and in some networks and containers
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))  # now it is ours
        try:
            unfinished.replace(path)
        except OSError:
            path.unlink(missing_ok=True)
            raise
