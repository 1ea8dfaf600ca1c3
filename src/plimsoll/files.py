"""Writing files: whole or not at all, never over another, with the user's rights only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, TYPE_CHECKING

from plimsoll.errors import InputError

if TYPE_CHECKING:
    from types import TracebackType


class NewFile:
    """A binary file that gets its name only when the `with` block ends without an error.

    Raises:
        InputError: If there is a file of that name already, or it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._unfinished = self._path.with_name(f".{self._path.name}.{os.getpid()}")

    def __enter__(self) -> IO[bytes]:
        if self._path.exists():
            raise InputError(f"{self._path}: exists already and is not overwritten")
        try:
            descriptor = os.open(self._unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise InputError(f"{self._path}: cannot be written: {error.strerror}") from None
        self._file = os.fdopen(descriptor, "wb")
        return self._file

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._file.close()
            if error is None:
                os.link(self._unfinished, self._path)
        except FileExistsError:
            raise InputError(f"{self._path}: exists already and is not overwritten") from None
        except OSError as failure:
            raise InputError(f"{self._path}: cannot be written: {failure.strerror}") from None
        finally:
            self._unfinished.unlink(missing_ok=True)
