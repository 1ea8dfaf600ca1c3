"""Stands in for a C library that a program opens by `ctypes`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class LibraryStandIn:
    """An object whose attributes are the functions of a C library.

    Each function takes the arguments that `ctypes` would pass to the library, and returns the
    library's status code.
    """

    def __init__(
        self,
        prefix: str,
        functions: Mapping[str, Callable[..., Any]],
        otherwise: Callable[[str], Callable[..., Any]],
    ) -> None:
        """Makes an object that stands in for a library.

        Args:
            prefix: The beginning of the names of all functions in the library.
            functions: The simulated functions, by name.
            otherwise: Returns a function for any other name with the prefix.
        """
        self._prefix = prefix
        self._library_functions = functions
        self._otherwise = otherwise

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or not name.startswith(self._prefix):
            raise AttributeError(name)
        found = self._library_functions.get(name)
        # `partial` makes a new object, because callers set attributes such as `restype` on it.
        function = partial(self._otherwise(name) if found is None else found)
        setattr(self, name, function)
        return function


def pointee(argument: Any) -> Any:
    """Returns the object to which a ctypes pointer, or the result of `byref`, points."""
    return argument._obj if hasattr(argument, "_obj") else argument.contents


def number(argument: Any) -> int:
    """Returns the number or the address in a ctypes argument; 0 for a null pointer."""
    return int(getattr(argument, "value", argument) or 0)
