"""Long work says on stderr what is being done: after 15 s, 30 s, 60 s, …, every four minutes."""

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
"""After which there is the first line, and how far apart later ones are."""


def say_now_and_then(text: Callable[[], str], is_over: threading.Event) -> None:
    """Print what `text` gives, if that is anything, until the work is over."""
    began, wait = time.monotonic(), _FIRST_SECONDS
    while not is_over.wait(wait):
        seconds = time.monotonic() - began
        if doing := text():
            line = printable(f"plimsoll: after {seconds:.0f} s: {doing}")
            print(f"{line}\n", end="", file=sys.stderr, flush=True)  # one write, of one thread
        wait = min(seconds, _MOST_SECONDS)


@contextmanager
def said_when_long(doing: str) -> Iterator[None]:
    """Say now and then what is being done, as long as the context lasts."""
    is_over = threading.Event()
    thread = threading.Thread(target=say_now_and_then, args=(lambda: doing, is_over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
