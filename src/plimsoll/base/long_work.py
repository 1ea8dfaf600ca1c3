"""Prints on stderr what long work is doing, every 15 seconds."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from plimsoll.base.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SECONDS = 15.0


def say_now_and_then(text: Callable[[], str], is_over: threading.Event) -> None:
    """Calls `text` every 15 seconds until the work is over. Prints each line that `text` returns.

    Nothing is printed while `text` returns "".
    """
    began = time.monotonic()
    while not is_over.wait(_SECONDS):
        seconds = time.monotonic() - began
        if doing := text():
            line = printable(f"plimsoll: after {seconds:.0f} s: {doing}")
            # `print` writes `end` separately, and another thread could print between the text and
            # `end`. So the newline is part of the text.
            print(f"{line}\n", end="", file=sys.stderr, flush=True)


@contextmanager
def said_when_long(doing: str) -> Iterator[Callable[[str], None]]:
    """Prints `doing` every 15 seconds while the `with` block runs.

    Yields a function that changes the text. Nothing is printed while the text is "".
    """
    now = [doing]
    is_over = threading.Event()
    thread = threading.Thread(target=say_now_and_then, args=(lambda: now[0], is_over), daemon=True)
    thread.start()
    try:
        yield lambda text: now.__setitem__(0, text)
    finally:
        is_over.set()
        thread.join()
