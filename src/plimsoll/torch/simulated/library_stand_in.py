"""An object in the place of a C library that a program opens by `ctypes`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class LibraryStandIn:
    """Has the functions of a C library as attributes, by their names.

    Each takes what `ctypes` would pass on, and returns the library's status.
    """

    def __init__(
        self,
        prefix: str,
        functions: Mapping[str, Callable[..., Any]],
        otherwise: Callable[[str], Callable[..., Any]],
    ) -> None:
        """Stand in for a library.

        Args:
            prefix: What its functions' names begin with.
            functions: Those that are there, by name.
            otherwise: Returns a function for any other name with the prefix.
        """
        self._prefix = prefix
        self._library_functions = functions
        self._otherwise = otherwise

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or not name.startswith(self._prefix):
            raise AttributeError(name)
        found = self._library_functions.get(name)
        # Callers set attributes on it, such as `restype`.
        function = partial(self._otherwise(name) if found is None else found)
        setattr(self, name, function)
        return function


def pointee(argument: Any) -> Any:
    """Return the object to which a pointer of ctypes, or `byref`, points."""
    return argument._obj if hasattr(argument, "_obj") else argument.contents


def number(argument: Any) -> int:
    """Return a number, or an address; 0 for a null pointer."""
    return int(getattr(argument, "value", argument) or 0)
