"""Defines the screens that open above the main one: texts, a question, a line of input."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from plimsoll.base.printable import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult
    from textual.events import Key

_HELP = """\
DRIVER      the figure of nvidia-smi; the next four are its parts
CONTEXT     the driver's own: kernels, libraries, work queues
ALLOCATED   live tensors
CACHED      free and kept for later requests; empty_cache() returns it
FRAGMENTS   free, in segments that are partly in use
SHARED      the part of the allocator's memory that lies in host RAM;
            DRIVER does not count it
PINNED      page-locked memory of the host
-           unknown: plimsoll does not run in this process

up, down    choose a GPU or a process, and show its details
esc         choose nothing; show all processes again
/           show only processes with a text in name, number or GPU
t           as a tree: which process started which
e           the environment of the process
w           write a snapshot of the process, for plimsoll explain
x           end the process; top asks first
s, r        sort by the next column; reverse the order
d a c f     sort by DRIVER, ALLOCATED, CACHED, FRAGMENTS
n p g       sort by program, number, GPU
+ - space   refresh more often, less often; pause     q   leave"""

_FRAME = """
    width: 80; max-width: 100%; height: auto; max-height: 100%; border: round $primary;
    background: $surface; padding: 0 1;
"""


class ReadScreen(ModalScreen[None]):
    """A screen that shows a text."""

    BINDINGS: ClassVar = [Binding("escape,question_mark,h,q,enter,e", "dismiss", "close")]
    DEFAULT_CSS = f"""
    ReadScreen {{ align: center middle; }}
    ReadScreen > VerticalScroll {{ {_FRAME} }}
    """

    def __init__(self, text: Text) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """Yields the text."""
        with VerticalScroll():
            yield Static(self._text)


class HelpScreen(ReadScreen):
    """Shows the meaning of the columns and the keys."""

    def __init__(self) -> None:
        super().__init__(Text(_HELP))


class EnvironmentScreen(ReadScreen):
    """Shows the environment variables that a process was started with."""

    def __init__(self, title: str, variables: Sequence[tuple[str, str]]) -> None:
        lines = [Text(printable(title), "bold"), Text()]
        lines += [Text.assemble((printable(name), "cyan"), f"={printable(value)}")
                  for name, value in variables]  # fmt: skip
        super().__init__(Text("\n").join(lines))


class QuestionScreen(ModalScreen[str | None]):
    """Asks a question; the screen's result is the pressed key.

    If the pressed key is not in `keys`, the result is None, which means no.

    Args:
        question: The question, which names the keys.
        keys: The keys that are possible answers.
    """

    DEFAULT_CSS = f"""
    QuestionScreen {{ align: center middle; }}
    QuestionScreen > Vertical {{ {_FRAME} border: round $error; }}
    """

    def __init__(self, question: str, keys: Sequence[str]) -> None:
        super().__init__()
        self._question = question
        self._keys = keys

    def compose(self) -> ComposeResult:
        """Yields the question."""
        with Vertical():
            yield Static(Text(printable(self._question)))

    def on_key(self, event: Key) -> None:
        """Closes the screen; its result is the answer."""
        event.stop()
        self.dismiss(event.character if event.character in self._keys else None)


class FilterScreen(ModalScreen[str | None]):
    """Asks for the text of the filter; Escape changes nothing.

    Args:
        text: The present filter.
    """

    BINDINGS: ClassVar = [Binding("escape", "dismiss", "leave it")]
    DEFAULT_CSS = """
    FilterScreen { align: center bottom; background: $background 0%; }
    FilterScreen > Input { width: 100%; }
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """Yields the line of input."""
        yield Input(self._text, placeholder="a program, a number or a GPU; enter shows its rows")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Closes the screen; its result is the text."""
        self.dismiss(event.value.strip())
