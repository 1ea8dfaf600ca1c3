"""What came of one item, and how often it is tried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from plimsoll.base.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_TRIES = 3
"""An item whose worker dies is given to another, until so many have died of it."""

NO_ANSWER = "gave an answer that cannot be read"

Result = TypeVar("Result")


@dataclass(frozen=True)
class Done(Generic[Result]):
    """An item that nothing more is done about.

    Attributes:
        index: Which one of the items.
        result: What the function returned; None where it failed.
        error: Why it failed, in a line; None where it did not.
    """

    index: int
    result: Result | None
    error: str | None = None


def answer(function: Callable[[Any], Any], item: Any) -> tuple[Any, str | None]:
    """What the function returns, or why it failed."""
    try:
        return function(item), None
    except Exception as error:
        return None, reason(error)


def done_with(index: int, answered: Any, result_type: type[Any]) -> Done[Any]:
    """The end of an item whose worker answered, which may be another version, or damaged.

    Args:
        index: Which one of the items.
        answered: A sound worker gives the pair that `answer` returned.
        result_type: The type of what the function returns.

    Raises:
        ValueError: If that is no answer.
    """
    if isinstance(answered, tuple) and len(answered) == 2:
        result, error = answered
        if isinstance(error, str):
            return Done(index, None, printable(error))
        if error is None and isinstance(result, result_type):
            return Done(index, result)
    raise ValueError("it is neither a result nor an error")


def reason(error: BaseException) -> str:
    """An error in a line: what our own says, or another's name and its first line."""
    text = str(error).strip().partition("\n")[0]
    if type(error).__module__ == "plimsoll.base.errors":
        return printable(text)
    return printable(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def worker_died(how: str) -> str:
    """Why an item failed whose workers died."""
    return f"the process that worked on it {how}, {MOST_TRIES} times"
