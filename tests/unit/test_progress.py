"""Tests the progress of long runs on stderr: a bar on a terminal, otherwise some lines."""

from __future__ import annotations

import io
import re
import sys
import threading
import time

import pytest

from plimsoll.base import long_work
from plimsoll.base.long_work import said_when_long
from plimsoll.cli import progress
from plimsoll.cli.progress import Progress
from tests.waiting import wait_for


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SOON_SECONDS", 0.05)
    monkeypatch.setattr(long_work, "_SECONDS", 0.1)


def test_without_a_terminal_a_line_says_now_and_then_where_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    with Progress("reading") as shown:
        shown.now("replaying\x1b")
        shown.reach(1, 4)
        wait_for(lambda: file.getvalue().count("\n") >= 2)
        shown.say("one is done")
    *lines, said = file.getvalue().splitlines()
    assert said == "one is done"
    assert set(lines) == {r"plimsoll: after 0 s: replaying\x1b, 25%"}


def test_where_nothing_is_known_of_it_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    with Progress() as shown:
        time.sleep(0.25)
        shown.reach(1, 4)
        wait_for(lambda: "\n" in file.getvalue())
    assert set(file.getvalue().splitlines()) == {"plimsoll: after 0 s: 25%"}


def test_on_a_terminal_there_is_a_bar_that_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    with Progress("reading") as shown:
        wait_for(lambda: "reading ━" in re.sub(r"\x1b\[[\d;]*m", "", terminal.getvalue()))
        shown.say("one is done")
    assert "one is done\n" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[2K")  # erases the bar's line


def test_what_is_over_soon_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(progress, "_SOON_SECONDS", 60.0)
    monkeypatch.setattr(sys, "stderr", terminal)
    began = time.monotonic()
    with Progress("reading"):
        pass
    assert terminal.getvalue() == ""
    assert time.monotonic() - began < 30


def test_it_ends_with_what_it_shows() -> None:
    with pytest.raises(RuntimeError), Progress("reading") as shown:
        raise RuntimeError
    assert not shown._thread.is_alive()


def test_lines_come_at_equal_intervals_however_long_the_work_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(long_work, "_SECONDS", 15.0)
    waits: list[float | None] = []

    class SixTimes(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            return len(waits) > 6

    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    long_work.say_now_and_then(lambda: "reading", SixTimes())
    assert waits == [15.0] * 7
    assert file.getvalue().count("reading\n") == 6


def test_work_without_a_bar_says_what_is_done_while_it_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    with said_when_long("running train.py again"):
        wait_for(lambda: file.getvalue().count("\n") >= 2)
    said = file.getvalue()
    assert set(said.splitlines()) == {"plimsoll: after 0 s: running train.py again"}
    time.sleep(0.3)
    assert file.getvalue() == said
