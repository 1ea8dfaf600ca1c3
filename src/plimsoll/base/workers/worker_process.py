"""A worker process: calls a function with each item from stdin, and writes the outcomes to stdout.

The first message on stdin names the function. When the parent ends or sends SIGTERM, the worker
undoes its unfinished work and ends.
"""

from __future__ import annotations

import importlib
import os
import pickle
import queue
import signal
import sys
import threading
from contextlib import suppress
from functools import reduce
from typing import TYPE_CHECKING, Any

from plimsoll.base.workers.done import answer

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

_ENDED = object()
"""The last entry in the queue of items."""


def main() -> None:
    """Calls the function with each item until the input ends."""
    signal.signal(signal.SIGTERM, _end)
    asked, answers = _own_streams()
    items: queue.SimpleQueue[Any] = queue.SimpleQueue()
    module, name, path = pickle.load(asked)  # noqa: S301
    sys.path[:] = path
    threading.Thread(target=_read, args=(asked, items), daemon=True).start()
    found: Any = importlib.import_module(module)
    function: Callable[[Any], Any] = reduce(getattr, name.split("."), found)
    while (item := items.get()) is not _ENDED:
        pickle.dump(answer(function, item), answers)
        answers.flush()


def _end(*_: object) -> None:
    """Handles SIGTERM: ends by SystemExit, so that `finally` undoes unfinished work.

    A second SIGTERM is ignored.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + signal.SIGTERM)


def _own_streams() -> tuple[BinaryIO, BinaryIO]:
    """Returns streams for items and answers: copies of stdin and stdout.

    The function that works on the items gets an empty stdin, and what it prints goes to stderr.
    """
    asked, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return asked, answers


def _read(asked: BinaryIO, items: queue.SimpleQueue[Any]) -> None:
    # `pickle` raises these errors when the parent has ended, perhaps in the middle of a message.
    with suppress(EOFError, pickle.UnpicklingError):
        while True:
            items.put(pickle.load(asked))  # noqa: S301
    # The parent has ended. If SIGTERM arrives just before the main thread begins to wait for an
    # item, the main thread goes on waiting. So `_ENDED` wakes the main thread in this case.
    items.put(_ENDED)
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
    else:
        os._exit(0)


if __name__ == "__main__":
    main()
