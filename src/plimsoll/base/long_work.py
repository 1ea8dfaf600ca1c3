"""Prints on stderr what long work is doing: after 15 s, 30 s, 60 s, …, then every four minutes."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from plimsoll.base.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FIRST_SECONDS, _MOST_SECONDS = 15.0, 240.0
"""The seconds before the first line, and the longest pause between two lines."""


def say_now_and_then(text: Callable[[], str], is_over: threading.Event) -> None:
    """Prints the line that `text` returns, at growing intervals, until the work is over.

    Nothing is printed while `text` returns "".
    """
    began, wait = time.monotonic(), _FIRST_SECONDS
    while not is_over.wait(wait):
        seconds = time.monotonic() - began
        if doing := text():
            line = printable(f"plimsoll: after {seconds:.0f} s: {doing}")
            print(f"{line}\n", end="", file=sys.stderr, flush=True)  # one write: lines do not mix
        wait = min(seconds, _MOST_SECONDS)


@contextmanager
def said_when_long(doing: str) -> Iterator[None]:
    """Prints `doing` at growing intervals while the `with` block runs."""
    is_over = threading.Event()
    thread = threading.Thread(target=say_now_and_then, args=(lambda: doing, is_over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
