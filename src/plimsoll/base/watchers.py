"""Watchers: plimsoll's own code that runs inside a program's calls, to note what the program does.

A watcher must not change the program. Each one is called through `Watchers.guarded`, so its own
errors never reach the program. `Watchers.failures` keeps the first error of each watcher.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_Function = TypeVar("_Function", bound="Callable[..., Any]")


class Watchers:
    """Guards the watchers of one process, and keeps the errors of those that failed.

    Attributes:
        failures: The first error of each watcher that failed, as one line, by the watcher's name.
    """

    def __init__(self) -> None:
        self.failures: dict[str, str] = {}

    def guarded(
        self, name: str, watcher: Callable[_Arguments, _Result]
    ) -> Callable[_Arguments, _Result | None]:
        """Returns a function that calls a watcher and keeps the watcher's errors from the program.

        The function returns None if the watcher fails. Two kinds of errors still reach the
        program: out-of-memory errors of the host or a GPU, and errors that are not an
        `Exception`, such as KeyboardInterrupt and SystemExit.

        Args:
            name: The subject of the watcher, such as "modules and optimizers". It is the key in
                `failures`.
            watcher: The returned function passes its own arguments on to the watcher.
        """

        def call(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Result | None:
            try:
                return watcher(*arguments, **named)
            except Exception as error:
                if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
                    raise
                self._note(name, error)
                return None

        return call

    def _note(self, name: str, error: Exception) -> None:
        if name in self.failures:
            return
        kind = type(error).__name__
        try:
            text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        except Exception:  # the error's own __str__ may fail
            text = ""
        self.failures[name] = f"{kind}: {text}" if text else kind


def outside_compilers(
    torch: ModuleType, *hooks: Callable[..., None]
) -> Iterator[Callable[..., None]]:
    """Wraps hooks so that they do nothing while torch.compile traces the program."""

    def outside(hook: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            if not torch.compiler.is_compiling():
                hook(*arguments)

        return call

    return map(outside, hooks)


def standing_in(original: Callable[..., Any], function: _Function) -> _Function:
    """Makes `function` look like `original`, which it replaces in the program. Returns `function`.

    The function gets the original's name, documentation and signature. TorchScript cannot compile
    the function, so it compiles the original.
    """
    functools.update_wrapper(function, original)
    function.__prepare_scriptable__ = lambda: original  # type: ignore[attr-defined]
    return function
