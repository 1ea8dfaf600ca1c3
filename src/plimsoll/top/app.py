"""The full screen of `plimsoll top`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Footer, Static

from plimsoll.top.text import SORT_KEYS, Row, SortKey, details, render

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.events import Resize

    from plimsoll.top.model import Machine

INTERVALS_SECONDS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
_HELP = """\
DRIVER is what nvidia-smi shows of a process. Where plimsoll runs in it,
that number is taken apart:

  CONTEXT     the driver's own: kernels, libraries, work queues
  ALLOCATED   live tensors
  CACHED      free, kept for later requests; empty_cache returns it
  FRAGMENTS   free, in segments that are partly in use
  SHARED      what of the allocator's memory is the host's
  PINNED      page-locked memory of the host

  up, down    choose a process, with what else is known of it
  s           sort by the next column       r   the other way round
  d a c f     sort by DRIVER, ALLOCATED, CACHED, FRAGMENTS
  n p         sort by program, by number
  + -         refresh more often, less often
  space       stop and go on
  q           leave

Unknown numbers are shown as -.
"""


class HelpScreen(ModalScreen[None]):
    """What the columns and the keys mean."""

    BINDINGS: ClassVar = [Binding("escape,question_mark,h,q,enter", "dismiss", "close")]
    DEFAULT_CSS = """
    HelpScreen { align: center middle; }
    HelpScreen > VerticalScroll {
        width: 80; max-width: 100%; height: auto; max-height: 100%; border: round $primary;
        background: $surface; padding: 0 1;
    }
    """

    def compose(self) -> ComposeResult:
        """One text."""
        with VerticalScroll():
            yield Static(_HELP)


class TopApp(App[None]):
    """Every GPU and process, looked at again and again.

    There is one look at a time: one that takes longer than the interval is waited for, and shown.

    Args:
        look: Looks at the machine; called in a thread of its own.
        interval_seconds: Between two looks.
        sort: What processes are sorted by first.
    """

    TITLE = "plimsoll top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #machine { height: 1fr; scrollbar-size: 0 0; }
    #details { height: auto; max-height: 8; border-top: solid $primary; display: none; }
    #details.shown { display: block; }
    """
    BINDINGS: ClassVar = [
        Binding("q", "quit", "quit"),
        Binding("question_mark,h", "help", "help", key_display="?"),
        Binding("s", "next_sort", "sort"),
        Binding("r", "reverse", "reverse"),
        Binding("up,k", "select(-1)", "choose", key_display="↑↓", priority=True),
        Binding("down,j", "select(1)", show=False, priority=True),
        Binding("plus,equals_sign", "faster(1)", "faster/slower", key_display="+/-"),
        Binding("minus", "faster(-1)", show=False),
        Binding("space", "pause", "stop/go"),
        Binding("d", "sort('driver')", show=False),
        Binding("a", "sort('allocated')", show=False),
        Binding("c", "sort('cached')", show=False),
        Binding("f", "sort('fragments')", show=False),
        Binding("n", "sort('program')", show=False),
        Binding("p", "sort('pid')", show=False),
    ]

    def __init__(
        self,
        look: Callable[[], Machine],
        *,
        interval_seconds: float = 1.0,
        sort: SortKey = "driver",
    ) -> None:
        super().__init__()
        self._look = look
        self._interval = interval_seconds
        self._sort: SortKey = sort
        self._is_reversed = False
        self._is_paused = False
        self._is_looking = False
        self._selected: tuple[str, int] | None = None  # the key of a row
        self._machine: Machine | None = None
        self._rows: tuple[Row, ...] = ()

    def compose(self) -> ComposeResult:
        """The machine, the chosen process, the keys."""
        with VerticalScroll(id="machine"):
            yield Static(id="text")
        yield Static(id="details")
        yield Footer()

    def on_mount(self) -> None:
        """Begin to look."""
        self._timer = self.set_interval(self._interval, self._look_again)
        self._look_again()

    def on_resize(self, _: Resize) -> None:
        """Lay out anew, once the new size is in force."""
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
        self._show()
        if self._selected is not None and self._place() is None:
            self.notify(f"process {self._selected[1]} has ended", timeout=5)
            self._selected = None

    def _show(self) -> None:
        if self._machine is None:
            return
        view = render(
            self._machine,
            self.size.width,
            sort=self._sort,
            is_reversed=self._is_reversed,
            selected=self._selected,
        )
        self._rows = view.rows
        self.query_one("#text", Static).update(view.text)
        place = self._place()
        panel = self.query_one("#details", Static)
        panel.set_class(place is not None, "shown")
        if place is not None:
            panel.update(details(self._rows[place], self.size.width))

    def _place(self) -> int | None:
        """Where the chosen process stands; None if there is none, or it has ended."""
        places = (place for place, row in enumerate(self._rows) if row.key == self._selected)
        return next(places, None)

    # --- keys ------------------------------------------------------------------------------------

    def action_help(self) -> None:
        """Explain the columns and the keys."""
        self.push_screen(HelpScreen())

    def action_select(self, by: int) -> None:
        """Choose the next process, or the one before."""
        if isinstance(self.screen, ModalScreen):
            self.screen.query_one(VerticalScroll).scroll_relative(y=by, animate=False)
            return
        if not self._rows:
            return
        place = self._place()
        if place is None:
            place = 0 if by > 0 else len(self._rows) - 1
        else:
            place = min(max(place + by, 0), len(self._rows) - 1)
        self._selected = self._rows[place].key
        self._show()
        # What is known of the process may have taken room away.
        self.call_after_refresh(self._scroll_to, self._rows[place].line)

    def _scroll_to(self, line: int) -> None:
        area = self.query_one("#machine", VerticalScroll)
        height = area.scrollable_content_region.height
        if not area.scroll_y <= line < area.scroll_y + height:
            area.scroll_to(y=max(line - height // 2, 0), animate=False)

    def action_sort(self, key: SortKey) -> None:
        """Sort by a column."""
        self._sort = key
        self._show()
        self.notify(f"sorted by {key}", timeout=2)

    def action_next_sort(self) -> None:
        """Sort by the next column."""
        self.action_sort(SORT_KEYS[(SORT_KEYS.index(self._sort) + 1) % len(SORT_KEYS)])

    def action_reverse(self) -> None:
        """Sort the other way round."""
        self._is_reversed = not self._is_reversed
        self._show()

    def action_pause(self) -> None:
        """Stop looking, or go on."""
        self._is_paused = not self._is_paused
        self.notify("stopped" if self._is_paused else "goes on", timeout=2)

    def action_faster(self, by: int) -> None:
        """Look more often, or less."""
        steps = INTERVALS_SECONDS
        nearest = min(range(len(steps)), key=lambda step: abs(steps[step] - self._interval))
        self._interval = steps[min(max(nearest - by, 0), len(steps) - 1)]
        self._timer.stop()
        self._timer = self.set_interval(self._interval, self._look_again)
        self.notify(f"every {self._interval:g} s", timeout=2)
