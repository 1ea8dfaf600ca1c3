"""The full screen: as on record at three sizes, and what its keys do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from rich.color import ColorSystem
from rich.segment import Segment
from textual.pilot import Pilot

from plimsoll.top import Machine
from plimsoll.top.app import HelpScreen, TopApp
from tests.unit.test_top_text import check_view
from tests.unit.top_machines import busy_machine

SIZES = ((80, 24), (120, 40), (200, 50))


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TEXTUAL_THEME", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)


def screen(app: TopApp, *, colour: bool = False) -> str:
    """What the terminal shows."""

    def shown(segment: Segment) -> str:
        if segment.style is None or not colour:
            return segment.text
        return segment.style.render(segment.text, color_system=ColorSystem.TRUECOLOR)

    lines = ("".join(map(shown, strip)) for strip in app.screen._compositor.render_strips())
    return "".join(f"{line.rstrip()}\n" for line in lines)


def drive(
    steps: Callable[[TopApp, Pilot[None]], Any],
    size: tuple[int, int] = (80, 24),
    look: Callable[[], Machine] = busy_machine,
) -> None:
    async def run() -> None:
        app = RememberingApp(look, interval_seconds=3600)
        async with app.run_test(size=size) as pilot:
            await settle(app, pilot)
            await steps(app, pilot)

    asyncio.run(run())


async def settle(app: TopApp, pilot: Pilot[None]) -> None:
    await app.workers.wait_for_complete()
    await pilot.pause()


async def press(app: TopApp, pilot: Pilot[None], *keys: str) -> str:
    await pilot.press(*keys)
    await settle(app, pilot)
    return screen(app)


class RememberingApp(TopApp):
    """Keeps its messages, which vanish from the screen after a while."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.messages: list[str] = []

    def notify(self, message: str, **options: Any) -> None:
        self.messages.append(message)
        super().notify(message, **options)


def told(app: TopApp) -> str:
    """The last message."""
    assert isinstance(app, RememberingApp)
    return app.messages[-1]


def order(text: str) -> list[str]:
    """The processes of the first GPU, from the top."""
    lines = text.split("GPU 1")[0].splitlines()
    return [line.split()[0] for line in lines if line.startswith("   ") and "PID" not in line]


@pytest.mark.parametrize("colour", [False, True], ids=["plain", "colour"])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_the_screen_is_as_on_record(size: tuple[int, int], colour: bool) -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await press(app, pilot, "down")
        kind = "colour" if colour else "plain"
        check_view(f"screen.{size[0]}x{size[1]}.{kind}", screen(app, colour=colour))

    drive(steps, size)


@pytest.mark.parametrize("size", [(40, 10), (30, 5), (300, 90)], ids=str)
def test_any_size_will_do(size: tuple[int, int]) -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        text = await press(app, pilot, "down", "down", "up", "question_mark", "escape")
        assert len(text.splitlines()) == size[1]

    drive(steps, size)


def test_without_colour_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def steps(app: TopApp, _: Pilot[None]) -> None:
        for sign in "█▓▒#=·":
            assert sign in screen(app)

    drive(steps, (120, 40))


def test_a_resized_terminal_is_laid_out_anew() -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        assert "CONTEXT" in screen(app)
        await pilot.resize_terminal(50, 24)
        await pilot.pause()
        assert "CONTEXT" not in screen(app)
        assert "ALLOCATED" in screen(app)

    drive(steps)


def test_q_leaves() -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("q")
        await pilot.pause()
        assert not app.is_running

    drive(steps)


def test_letters_sort_and_r_turns_round() -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        assert order(screen(app)) == ["4711", "2200", "1100"]
        assert order(await press(app, pilot, "p")) == ["1100", "2200", "4711"]
        assert order(await press(app, pilot, "r")) == ["4711", "2200", "1100"]
        assert order(await press(app, pilot, "d")) == ["1100", "2200", "4711"]
        assert order(await press(app, pilot, "r", "s")) == ["4711", "1100", "2200"]
        assert told(app) == "sorted by allocated"

    drive(steps)


def test_arrows_choose_a_process_and_scroll_to_it() -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        assert "process 4711" not in screen(app)
        assert "process 4711, train.py --batch-size 64, on GPU 0" in await press(app, pilot, "down")
        text = await press(app, pilot, *["down"] * 9)
        assert "process 6000, finetune.py, on GPU 0 of 6000" in text
        assert "   6000 finetune.py" in text
        assert "on GPU 1" in await press(app, pilot, "up")

    drive(steps)


def test_help_opens_and_closes() -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        text = await press(app, pilot, "question_mark")
        assert isinstance(app.screen, HelpScreen)
        assert "CONTEXT" in text
        assert "page-locked memory of the host" in text
        await press(app, pilot, "down", "escape")
        assert not isinstance(app.screen, HelpScreen)
        await press(app, pilot, "h", "q")
        assert app.is_running
        assert not isinstance(app.screen, HelpScreen)

    drive(steps)


def test_plus_and_minus_change_the_interval() -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        app._interval = 1.0
        for keys, interval in ((["plus"], 0.5), (["minus"] * 2, 2), (["minus"] * 9, 10)):
            await press(app, pilot, *keys)
            assert told(app) == f"every {interval:g} s"
            assert app._timer._interval == interval

    drive(steps)


def test_space_stops_looking() -> None:
    looks = 0

    def look() -> Machine:
        nonlocal looks
        looks += 1
        return busy_machine()

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await press(app, pilot, "space")
        before = looks
        app._look_again()
        await settle(app, pilot)
        assert looks == before
        await press(app, pilot, "space")
        app._look_again()
        await settle(app, pilot)
        assert looks == before + 1

    drive(steps, look=look)


def test_a_look_longer_than_the_interval_is_waited_for_and_shown() -> None:
    first, second = busy_machine(), Machine(gpus=())
    may_go_on = threading.Event()
    looks: list[Machine] = []

    def look() -> Machine:
        looks.append(second if looks else first)
        if len(looks) > 1:
            may_go_on.wait()
        return looks[-1]

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        try:
            for _ in range(5):
                app._look_again()
                await pilot.pause()
            assert "GPU 0" in screen(app)
        finally:
            may_go_on.set()
        await settle(app, pilot)
        assert len(looks) == 2
        assert "no GPU is in sight" in screen(app)
        app._look_again()
        await settle(app, pilot)
        assert len(looks) == 3

    drive(steps, look=look)


def test_a_chosen_process_that_dies_is_told() -> None:
    now = busy_machine()

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        nonlocal now
        await press(app, pilot, "down", "down")
        assert "process 2200" in screen(app)
        first = now.gpus[0]
        kept = tuple(use for use in first.processes if use.pid != 2200)
        now = replace(now, gpus=(replace(first, processes=kept), *now.gpus[1:]))
        app._look_again()
        await settle(app, pilot)
        text = screen(app)
        assert told(app) == "process 2200 has ended"
        assert "plimsoll does not run in it" not in text
        assert order(text) == ["4711", "1100"]

    drive(steps, look=lambda: now)
