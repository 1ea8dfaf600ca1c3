"""The outcome of one item of work, and how many workers may try an item."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from plimsoll.base.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_TRIES = 3
"""If a worker dies, another worker gets its item. After this many deaths the item fails."""

NO_ANSWER = "gave an answer that cannot be read"

Result = TypeVar("Result")


@dataclass(frozen=True)
class Done(Generic[Result]):
    """The final outcome of an item.

    Attributes:
        index: The item's position.
        result: The function's result; None if the item failed.
        error: Why the item failed, in a line; None if it succeeded.
    """

    index: int
    result: Result | None
    error: str | None = None


def answer(function: Callable[[Any], Any], item: Any) -> tuple[Any, str | None]:
    """Calls the function. Returns (result, None), or (None, error in a line) if it raised."""
    try:
        return function(item), None
    except Exception as error:
        return None, reason(error)


def done_with(index: int, answered: Any, result_type: type[Any]) -> Done[Any]:
    """Makes the outcome of an item from a worker's answer, which may be damaged.

    Args:
        index: The item's position.
        answered: The pair that `answer` returned in the worker, perhaps damaged.
        result_type: The type of the function's result.

    Raises:
        ValueError: If the answer is damaged, or the function's result is not a `result_type`.
    """
    if isinstance(answered, tuple) and len(answered) == 2:
        result, error = answered
        if isinstance(error, str):
            return Done(index, None, printable(error))
        if error is None and isinstance(result, result_type):
            return Done(index, result)
    raise ValueError("it is neither a result nor an error")


def reason(error: BaseException) -> str:
    """Returns the error's type and the first line of its message.

    The type is left out if it is one of plimsoll's own.
    """
    text = str(error).strip().partition("\n")[0]
    if type(error).__module__ == "plimsoll.base.errors":
        return printable(text)
    return printable(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def worker_died(how: str) -> str:
    """Returns the error text for an item that `MOST_TRIES` workers have failed to finish.

    Args:
        how: The last worker's failure, as a predicate such as "was killed by SIGKILL".
    """
    return f"the process that worked on it {how}, {MOST_TRIES} times"
