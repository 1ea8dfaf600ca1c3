"""The full screen of `plimsoll top`."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Footer, Static

from plimsoll.base.errors import InputError
from plimsoll.base.telemetry.identity import parent_of, program_name
from plimsoll.integrations.top import screens
from plimsoll.integrations.top.details import details
from plimsoll.integrations.top.history import History
from plimsoll.integrations.top.process_acts import ChosenProcess, environment, write_snapshot
from plimsoll.integrations.top.process_table import SORT_KEYS, Order, Row, SortKey
from plimsoll.integrations.top.text import render

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.events import Resize

    from plimsoll.integrations.top.hosts import HostsWatch
    from plimsoll.integrations.top.model import Machine, ProcessUse

INTERVALS_SECONDS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
_ENDINGS = {"y": signal.SIGTERM, "K": signal.SIGKILL}


class TopApp(App[None]):
    """The screen of every GPU and process, refreshed at an interval.

    Only one refresh runs at a time. If one takes longer than the interval, the refreshes that would
    start meanwhile are left out.

    Args:
        look: A function that returns the machine's state; called in a thread of its own.
        interval_seconds: The time between two refreshes.
        sort: The initial sort key of processes.
        history: The memory use that earlier refreshes found; None starts an empty history.
        hosts: The watch that asks other machines; None if the screen shows this machine.
    """

    TITLE = "plimsoll top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #machine { height: 1fr; scrollbar-size: 0 0; }
    #details { height: auto; max-height: 12; border-top: solid $primary; display: none; }
    #details.shown { display: block; }
    """
    BINDINGS: ClassVar = [
        Binding("up,k", "select(-1)", "choose", key_display="↑↓", priority=True),
        Binding("down,j", "select(1)", show=False, priority=True),
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("s", "next_sort", "sort"),
        Binding("t", "tree", "tree"),
        Binding("e", "environment", "env"),
        Binding("w", "snapshot", "snapshot"),
        Binding("x", "end", "end"),
        Binding("question_mark,h", "help", "help", key_display="?"),
        Binding("q", "quit", "quit"),
        Binding("escape", "let_go", show=False),
        Binding("r", "reverse", show=False),
        Binding("plus,equals_sign", "faster(1)", show=False),
        Binding("minus", "faster(-1)", show=False),
        Binding("space", "pause", show=False),
        Binding("d", "sort('driver')", show=False),
        Binding("a", "sort('allocated')", show=False),
        Binding("c", "sort('cached')", show=False),
        Binding("f", "sort('fragments')", show=False),
        Binding("n", "sort('program')", show=False),
        Binding("p", "sort('pid')", show=False),
        Binding("g", "sort('gpu')", show=False),
    ]

    def __init__(
        self,
        look: Callable[[], Machine],
        *,
        interval_seconds: float = 1.0,
        sort: SortKey = "driver",
        history: History | None = None,
        hosts: HostsWatch | None = None,
    ) -> None:
        super().__init__()
        self._hosts = hosts
        self._look = look
        self._interval = interval_seconds
        self._order = Order(sort)
        self._history = history or History()
        self._is_paused = False
        self._is_looking = False
        self._selected: tuple[str, int | None] | None = None  # the key of the selected row
        self._machine: Machine | None = None
        self._rows: tuple[Row, ...] = ()

    def compose(self) -> ComposeResult:
        """Yields the machine's text, the details of the selected row, and the line of keys."""
        with VerticalScroll(id="machine"):
            yield Static(id="text")
        yield Static(id="details")
        yield Footer()

    def on_mount(self) -> None:
        """Starts the timer that refreshes the screen."""
        self._timer = self.set_interval(self._interval, self._look_again)
        self._look_again()

    def on_resize(self, _: Resize) -> None:
        """Waits until the new size is in force, then lays the screen out again."""
        self.call_after_refresh(self._show)

    # --- looking ---------------------------------------------------------------------------------

    def _look_again(self) -> None:
        if not self._is_paused and not self._is_looking:
            self._is_looking = True
            self.run_worker(self._look_once())

    async def _look_once(self) -> None:
        try:
            self._machine = await asyncio.to_thread(self._look)
        finally:
            self._is_looking = False
        self._history.add(self._machine)
        self._show()
        if self._selected is not None and self._place() is None:
            gpu, pid = self._selected
            gone = f"GPU {gpu} is gone" if pid is None else f"process {pid} has ended"
            self.notify(gone, timeout=5)
            self._selected = None

    def _show(self) -> None:
        if self._machine is None:
            return
        view = render(
            self._machine,
            self.size.width,
            self._order,
            history=self._history,
            selected=self._selected,
        )
        self._rows = view.rows
        self.query_one("#text", Static).update(view.text)
        place = self._place()
        panel = self.query_one("#details", Static)
        panel.set_class(place is not None, "shown")
        if place is not None:
            panel.update(details(self._rows[place], self.size.width, self._history))

    def _place(self) -> int | None:
        """Returns the index of the selected row; None if no row is selected, or the row is gone."""
        places = (place for place, row in enumerate(self._rows) if row.key == self._selected)
        return next(places, None)

    # --- keys ------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        """Disables the keys of this screen while another screen is open above it."""
        return not isinstance(self.screen, ModalScreen)

    def action_help(self) -> None:
        """Explains the columns and the keys."""
        self.push_screen(screens.HelpScreen())

    def action_select(self, by: int) -> None:
        """Moves the selection down by `by` rows, or up if `by` is negative."""
        if not self._rows:
            return
        place = self._place()
        if place is None:
            place = 0 if by > 0 else len(self._rows) - 1
        else:
            place = min(max(place + by, 0), len(self._rows) - 1)
        self._selected = self._rows[place].key
        self._show()
        # The panel of details may shrink the table. The table's new height is known only after the
        # next layout, so scroll then.
        self.call_after_refresh(self._scroll_to, self._rows[place].line)

    def _scroll_to(self, line: int) -> None:
        area = self.query_one("#machine", VerticalScroll)
        height = area.scrollable_content_region.height
        if not area.scroll_y <= line < area.scroll_y + height:
            area.scroll_to(y=max(line - height // 2, 0), animate=False)

    def action_let_go(self) -> None:
        """Clears the selection; without a selection, clears the filter."""
        if self._selected is None:
            self._order = replace(self._order, containing="")
        self._selected = None
        self._show()

    def action_sort(self, key: SortKey) -> None:
        """Sorts the processes by a column."""
        self._reorder(sort=key)
        self.notify(f"sorted by {key}", timeout=2)

    def action_next_sort(self) -> None:
        """Sorts the processes by the next column."""
        self.action_sort(SORT_KEYS[(SORT_KEYS.index(self._order.sort) + 1) % len(SORT_KEYS)])

    def action_reverse(self) -> None:
        """Reverses the order of the processes."""
        self._reorder(is_reversed=not self._order.is_reversed)

    def action_tree(self) -> None:
        """Switches between a list of processes and a tree of parents and children."""
        if self._hosts is not None:
            self._complain("a tree needs this machine's processes: run plimsoll top there")
            return
        is_list = self._order.parent_of is None
        self._reorder(parent_of=parent_of if is_list else None, name_of=program_name)

    def action_filter(self) -> None:
        """Asks for a text, and shows only the processes whose rows contain the text."""

        def filter_by(text: str | None) -> None:
            if text is not None:
                self._selected = None
                self._reorder(containing=text)

        self.push_screen(screens.FilterScreen(self._order.containing), filter_by)

    def _reorder(self, **changes: Any) -> None:
        self._order = replace(self._order, **changes)
        self._show()

    # --- on the selected process -----------------------------------------------------------------

    def _chosen(self) -> Row | None:
        """Returns the selected process's row.

        If no process is selected, shows a note and returns None.
        """
        place = self._place()
        if place is None or self._rows[place].use is None:
            self.notify("choose a process first, by the arrows", timeout=3)
            return None
        return self._rows[place]

    def _chosen_here(self) -> ProcessUse | None:
        """Returns the selected process if it runs on this machine; otherwise shows a note."""
        row = self._chosen()
        if row is not None and row.gpu.host is not None:
            self._complain(f"that needs plimsoll top on {row.gpu.host} itself")
            return None
        return None if row is None else row.use

    def action_environment(self) -> None:
        """Shows the environment of the selected process."""
        use = self._chosen_here()
        if use is None:
            return
        try:
            title = f"process {use.pid}, {use.program or 'unknown'}"
            self.push_screen(screens.EnvironmentScreen(title, environment(use.pid)))
        except InputError as error:
            self._complain(str(error))

    def action_snapshot(self) -> None:
        """Writes a snapshot of the selected process after a confirmation."""
        row = self._chosen()
        if row is None or (use := row.use) is None:
            return
        if use.counters is None:
            self._complain(f"plimsoll does not run in process {use.pid}: it gives no snapshot")
            return
        folder = Path.cwd()

        def write(answer: str | None) -> None:
            if answer is not None:
                self.run_worker(self._write_snapshot(row, use, folder))

        question = (
            f"Write a snapshot of process {use.pid} to {folder}? Its Python waits meanwhile, a "
            "second or more for a long history.  y: yes, any other key: no"
        )
        self.push_screen(screens.QuestionScreen(question, ("y",)), write)

    async def _write_snapshot(self, row: Row, use: ProcessUse, folder: Path) -> None:
        try:
            path = await asyncio.to_thread(
                write_snapshot, use, folder, host=row.gpu.host, hosts=self._hosts
            )
        except (InputError, OSError) as error:
            self._complain(str(error))
        else:
            self.notify(f"plimsoll explain {path.name}", title="written", timeout=10)

    def action_end(self) -> None:
        """Ends the selected process after a confirmation."""
        use = self._chosen_here()
        if use is None:
            return
        try:
            process = ChosenProcess.of(use.pid)
        except InputError as error:
            self._complain(str(error))
            return

        def end(answer: str | None) -> None:
            if answer is None:
                return
            try:
                process.end(_ENDINGS[answer])
            except InputError as error:
                self._complain(str(error))
            else:
                self.notify(f"{_ENDINGS[answer].name} was sent to process {process.pid}", timeout=5)

        question = (
            f"End process {use.pid}, {use.program or 'unknown'}?  y: ask it to end (SIGTERM), "
            "K: kill it (SIGKILL; what it has not saved is lost), any other key: no"
        )
        self.push_screen(screens.QuestionScreen(question, tuple(_ENDINGS)), end)

    def _complain(self, message: str) -> None:
        self.notify(message, severity="warning", timeout=5)

    # --- refreshing ------------------------------------------------------------------------------

    def action_pause(self) -> None:
        """Pauses or resumes refreshing."""
        self._is_paused = not self._is_paused
        self.notify("stopped" if self._is_paused else "goes on", timeout=2)

    def action_faster(self, by: int) -> None:
        """Shortens the interval between refreshes by `by` steps; negative steps lengthen it."""
        steps = INTERVALS_SECONDS
        nearest = min(range(len(steps)), key=lambda step: abs(steps[step] - self._interval))
        self._interval = steps[min(max(nearest - by, 0), len(steps) - 1)]
        self._timer.stop()
        self._timer = self.set_interval(self._interval, self._look_again)
        self.notify(f"every {self._interval:g} s", timeout=2)
