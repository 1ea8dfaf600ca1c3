"""Shows the progress of long work on stderr: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Self

from plimsoll.base.long_work import say_now_and_then
from plimsoll.base.printable import printable

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

_SOON_SECONDS = 0.5
"""Work that ends sooner gets no bar, which would only flicker."""


class Progress:
    """A context manager that shows progress while the body of its `with` statement runs.

    Args:
        doing: The work, in words.
        total: The number of parts of the work; None if it is unknown.
    """

    def __init__(self, doing: str = "", total: int | None = None) -> None:
        self._doing, self._total, self._done = doing, total, 0
        self._is_over = threading.Event()
        self._bar = _bar() if sys.stderr.isatty() else None
        self._task = (
            None if self._bar is None else self._bar.add_task(printable(doing), total=total)
        )
        show = self._tell if self._bar is None else self._start_bar
        self._thread = threading.Thread(target=show, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        if self._bar is not None:
            self._bar.stop()

    def now(self, doing: str) -> None:
        """Changes the words that say what is being done."""
        self._doing = doing
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=printable(doing))

    def reach(self, done: int, total: int | None = None) -> None:
        """Shows that `done` of `total` parts are done. By default, the total stays as it was."""
        self._done, self._total = done, total or self._total
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, total=self._total)

    def say(self, line: str) -> None:
        """Prints a line that stays on the screen, above the bar if there is one."""
        if self._bar is None:
            whole = f"{printable(line)}\n"  # one write, since another thread prints too
            print(whole, end="", file=sys.stderr, flush=True)
        else:
            self._bar.console.print(printable(line), markup=False, highlight=False)

    def _start_bar(self) -> None:
        if not self._is_over.wait(_SOON_SECONDS) and self._bar is not None:
            self._bar.start()

    def _tell(self) -> None:
        say_now_and_then(self._where, self._is_over)

    def _where(self) -> str:
        share = f"{self._done / self._total:.0%}" if self._total else ""
        return ", ".join(filter(None, (self._doing, share)))


def _bar() -> Bar:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
