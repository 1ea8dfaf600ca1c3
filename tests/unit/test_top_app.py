"""Tests the full screen of `plimsoll top`: its text at three sizes, and what its keys do."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from rich.color import ColorSystem
from rich.segment import Segment
from textual.pilot import Pilot

from plimsoll.integrations.top.app import TopApp
from plimsoll.integrations.top.history import History
from plimsoll.integrations.top.hosts import HostsWatch
from plimsoll.integrations.top.model import Machine
from plimsoll.integrations.top.screens import EnvironmentScreen, HelpScreen, QuestionScreen
from tests.unit.fake_nvml import FakeNvml, Gpu
from tests.unit.test_top_hosts import FakeHost
from tests.unit.test_top_text import check_view
from tests.unit.top_machines import GIB, busy_machine, device, machine, process

SIZES = ((80, 24), (120, 40), (200, 50))


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TEXTUAL_THEME", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)


def screen(app: TopApp, *, colour: bool = False) -> str:
    """Returns the text on the terminal."""

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
    """An app that keeps its messages, which vanish from the screen after a while."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.messages: list[str] = []

    def notify(self, message: str, **options: Any) -> None:
        self.messages.append(message)
        super().notify(message, **options)


def told(app: TopApp) -> str:
    """Returns the last message."""
    assert isinstance(app, RememberingApp)
    return app.messages[-1]


def order(text: str) -> list[str]:
    """Returns the process ids in the order of the screen's rows."""
    lines = text.split("────")[0].splitlines()
    return [line.split()[0] for line in lines if line.startswith("   ") and "PID" not in line]


@dataclass
class Choices:
    """Gives the screen its data: a machine on which the real process `pid` uses the GPU."""

    pid: int

    def look(self) -> Machine:
        gpu = Gpu("GPU-aa", used=30 * GIB)
        gpu.compute = {self.pid: 20 * GIB}
        return machine(FakeNvml(gpu), process(self.pid, device()))


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """Yields a sleeping process with a secret in its environment."""
    environment = {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": "3", "HF_TOKEN": "hf_abc"}
    with subprocess.Popen(["sleep", "600"], env=environment) as started:
        yield started
        started.kill()


@pytest.mark.parametrize("colour", [False, True], ids=["plain", "colour"])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_the_screen_is_as_on_record(size: tuple[int, int], colour: bool) -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await press(app, pilot, *["down"] * 4)
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
        assert "FRAGMENTS" in screen(app)
        await pilot.resize_terminal(50, 24)
        await pilot.pause()
        assert "FRAGMENTS" not in screen(app)
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
        by_number = ["1100", "2200", "4711", "4711", "5150", "6000"]
        by_driver = ["4711", "5150", "2200", "6000", "4711", "1100"]
        assert order(screen(app)) == by_driver
        assert order(await press(app, pilot, "p")) == by_number
        assert order(await press(app, pilot, "r")) == by_number[::-1]
        assert order(await press(app, pilot, "d")) == by_driver[::-1]
        by_allocated = ["5150", "4711", "4711", "6000", "1100", "2200"]
        assert order(await press(app, pilot, "r", "s")) == by_allocated
        assert told(app) == "sorted by allocated"

    drive(steps)


def test_arrows_choose_a_gpu_or_a_process_and_scroll_to_it() -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        assert "process 4711" not in screen(app)
        text = await press(app, pilot, "down")
        assert "GPU 0, NVIDIA H100 80GB HBM3, 97% busy, 3 processes" in text
        assert "3.00 GiB of 128.00 GiB" in text
        text = await press(app, pilot, *["down"] * 3)
        assert "process 4711, train.py --batch-size 64, on GPU 0" in text
        text = await press(app, pilot, *["down"] * 9)
        assert "process 1100, program1100, on GPU 0" in text
        assert "   1100 0     program1100" in text
        assert "on GPU 1" in await press(app, pilot, "up")
        assert "────" not in await press(app, pilot, "escape")

    drive(steps)


def test_help_fits_a_small_terminal_opens_and_closes() -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        text = await press(app, pilot, "question_mark")
        assert isinstance(app.screen, HelpScreen)
        check_view("help.80x24", text)
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
        assert "no GPU was found" in screen(app)
        app._look_again()
        await settle(app, pilot)
        assert len(looks) == 3

    drive(steps, look=look)


def test_a_chosen_process_that_dies_is_told() -> None:
    now = busy_machine()

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        nonlocal now
        await press(app, pilot, "p", *["down"] * 5)
        assert "process 2200" in screen(app)
        first = now.gpus[0]
        kept = tuple(use for use in first.processes if use.pid != 2200)
        now = replace(now, gpus=(replace(first, processes=kept), *now.gpus[1:]))
        app._look_again()
        await settle(app, pilot)
        text = screen(app)
        assert told(app) == "process 2200 has ended"
        assert "plimsoll does not run in it" not in text
        assert order(text) == ["1100", "4711", "4711", "5150", "6000"]

    drive(steps, look=lambda: now)


def test_only_what_is_looked_for_is_shown() -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        assert order(await press(app, pilot, "slash", *"train", "enter")) == ["4711", "4711"]
        assert "GPU 1 H100" in screen(app)
        await press(app, pilot, "slash", *["backspace"] * 5, *"zz", "enter")
        assert "no process with 'zz' is known to use a GPU" in screen(app)
        # Escape drops the filter that is being typed, so the filter 'zz' still applies.
        assert len(order(await press(app, pilot, "slash", *"q", "escape"))) == 0
        assert app.is_running
        assert len(order(await press(app, pilot, "escape"))) == 6

    drive(steps)


def test_a_tree_shows_what_started_them(monkeypatch: pytest.MonkeyPatch) -> None:
    parents = {4711: 4000, 5150: 4000, 6000: 5150}
    monkeypatch.setattr("plimsoll.integrations.top.app.parent_of", parents.get)
    monkeypatch.setattr("plimsoll.integrations.top.app.program_name", {4000: "torchrun"}.get)

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        text = await press(app, pilot, "p", "t")
        names = [line[14:28].rstrip() for line in text.splitlines() if line.startswith("   ")]
        assert names[1:] == [
            *("program1100", "program2200", "torchrun"),
            *("├ train.py --b", "├ train.py --b", "└ serve.py --m", "  └ finetune.p"),
        ]
        assert "torchrun" not in await press(app, pilot, "t")

    drive(steps)


def test_the_environment_of_a_process_is_shown_without_its_secrets(
    sleeper: subprocess.Popen[bytes],
) -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await press(app, pilot, "e")
        assert told(app) == "choose a process first, by the arrows"
        text = await press(app, pilot, "down", "down", "e")
        assert isinstance(app.screen, EnvironmentScreen)
        assert "CUDA_VISIBLE_DEVICES=3" in text
        assert "HF_TOKEN=(hidden)" in text
        assert "hf_abc" not in text
        await press(app, pilot, "escape")
        assert not isinstance(app.screen, EnvironmentScreen)

    drive(steps, look=Choices(sleeper.pid).look)


@pytest.mark.parametrize(
    ("key", "how"), [("y", signal.SIGTERM), ("K", signal.SIGKILL)], ids=["asked", "killed"]
)
def test_a_process_ends_when_the_question_is_answered(
    key: str, how: signal.Signals, sleeper: subprocess.Popen[bytes]
) -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        text = await press(app, pilot, "down", "down", "x")
        assert isinstance(app.screen, QuestionScreen)
        assert f"End process {sleeper.pid}, train.py --batch-size 64?" in text
        await press(app, pilot, "n")
        assert not isinstance(app.screen, QuestionScreen)
        assert sleeper.poll() is None
        await press(app, pilot, "x", key)
        assert told(app) == f"{how.name} was sent to process {sleeper.pid}"
        assert sleeper.wait(10) == -how

    drive(steps, look=Choices(sleeper.pid).look)


def test_a_process_that_has_ended_is_not_ended_again(sleeper: subprocess.Popen[bytes]) -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await press(app, pilot, "down", "down", "x")
        sleeper.kill()
        sleeper.wait()
        await press(app, pilot, "y")
        assert told(app) == f"process {sleeper.pid} has ended"

    drive(steps, look=Choices(sleeper.pid).look)


def test_a_snapshot_is_written_when_the_question_is_answered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "plimsoll.integrations.top.process_acts.request_snapshot", lambda pid: b"%d" % pid
    )

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        text = await press(app, pilot, "p", *["down"] * 6, "w")
        assert "Write a snapshot of process 4711 to " in text
        await press(app, pilot, "n")
        assert list(tmp_path.iterdir()) == []
        await press(app, pilot, "w", "y")
        assert told(app) == "plimsoll explain plimsoll-4711-1.pickle"
        await press(app, pilot, "w", "y")
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
            "plimsoll-4711-1.pickle": b"4711", "plimsoll-4711-2.pickle": b"4711",
        }  # fmt: skip
        await press(app, pilot, "up", "w")
        assert told(app) == "plimsoll does not run in process 2200: it gives no snapshot"

    drive(steps)


def test_what_was_in_use_lately_is_drawn() -> None:
    times = iter(range(0, 1000, 5))
    history = History(lambda: next(times))
    used = iter([40] * 8 + [80] * 8)

    def look() -> Machine:
        return machine(FakeNvml(Gpu("GPU-aa", used=next(used) * GIB)))

    async def run() -> None:
        app = TopApp(look, interval_seconds=3600, history=history)
        async with app.run_test(size=(80, 24)) as pilot:
            await settle(app, pilot)
            for _ in range(15):
                app._look_again()
                await settle(app, pilot)
            assert screen(app).splitlines()[1].endswith(" ▄█")
            lines = (await press(app, pilot, "down")).splitlines()
            place = lines.index("the last 75 s: 40.00 GiB to 80.00 GiB of 80.00 GiB")
            assert [line.strip() for line in lines[place + 1 : place + 3]] == ["█" * 8, "█" * 16]

    asyncio.run(run())


def test_processes_elsewhere_give_snapshots_and_no_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    host = FakeHost("n1")
    hosts = HostsWatch([host])

    async def run() -> None:
        app = RememberingApp(hosts.look, interval_seconds=3600, hosts=hosts)
        async with app.run_test(size=(80, 24)) as pilot:
            await settle(app, pilot)
            assert "GPU n1:0 H100" in screen(app)
            await press(app, pilot, "p", *["down"] * 6)
            assert "process 4711" in screen(app)
            for key in "ex":
                await press(app, pilot, key)
                assert told(app) == "that needs plimsoll top on n1 itself"
            await press(app, pilot, "t")
            assert told(app) == "a tree needs this machine's processes: run plimsoll top there"
            await press(app, pilot, "w", "y")
            assert told(app) == "plimsoll explain plimsoll-4711-1.pickle"
        assert host.asked == [4711]
        assert (tmp_path / "plimsoll-4711-1.pickle").read_bytes() == b"4711"

    asyncio.run(run())
