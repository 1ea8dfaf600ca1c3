"""Takes the documentation's pictures of the terminal, each at 80 and at 200 columns.

    python docs/images/terminal.py

Each command runs on a pseudo-terminal as wide as the picture. `top` shows the machine of its unit
tests.
"""

from __future__ import annotations

import asyncio
import fcntl
import io
import itertools
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from plimsoll.integrations.top.app import TopApp  # noqa: E402
from plimsoll.integrations.top.history import History  # noqa: E402
from plimsoll.integrations.top.model import Machine  # noqa: E402
from tests.unit.top_machines import busy_machine  # noqa: E402

WIDTHS = {80: 24, 200: 50}
RECORDINGS = "examples/recordings"
COMMANDS = {
    "explain": f"plimsoll explain {RECORDINGS}/gpt2_adamw_oom.pickle.gz",
    "replay": f"plimsoll replay {RECORDINGS}/gpt2_adamw.pickle.gz --conf '' "
    "--conf expandable_segments:True --conf max_split_size_mb:128",
}
_LOOKS = 60


def shown(command: str, columns: int) -> str:
    """Returns the output of a command on a terminal, with its colours."""
    leader, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("4H", 50, columns, 0, 0))
    words = [sys.executable, "-m", *shlex.split(command)]
    with subprocess.Popen(  # noqa: S603
        words, stdin=inside, stdout=inside, stderr=subprocess.DEVNULL, cwd=ROOT,
        env={**os.environ, "TERM": "xterm-256color"},
    ):  # fmt: skip
        os.close(inside)
        text = b""
        with suppress(OSError):  # raised on Linux once the other end has closed
            while part := os.read(leader, 1 << 16):
                text += part
    os.close(leader)
    return text.decode().replace("\r\n", "\n")


def without_network(picture: str) -> str:
    """Removes web fonts from a picture, so that it uses the reader's own font."""
    return re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)


def take_command(name: str, command: str, columns: int) -> None:
    """Takes the picture of a command and the first lines of its output."""
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True)
    text = Text.from_ansi(f"$ {command}\n{shown(command, columns)}")
    lines = text.split(allow_blank=True)[: WIDTHS[columns] - 2]
    console.print(Text("\n").join(lines), soft_wrap=columns > 100)
    picture = console.export_svg(title=command.partition(" -")[0], unique_id=f"{name}-{columns}")
    (HERE / f"{name}-{columns}.svg").write_text(without_network(picture))


async def take_top(columns: int) -> None:
    """Takes the picture of `top` after a minute. The chosen process has spilled."""
    looks = itertools.count()

    def look() -> Machine:
        return growing(busy_machine(), next(looks) / _LOOKS)

    clock = itertools.count()
    app = TopApp(look, interval_seconds=3600, history=History(lambda: float(next(clock))))
    async with app.run_test(size=(columns, WIDTHS[columns])) as pilot:
        for _ in range(_LOOKS):
            await app.workers.wait_for_complete()
            app._look_again()
        await app.workers.wait_for_complete()
        await pilot.press(*["down"] * 5)
        await pilot.pause()
        picture = app.export_screenshot(title="plimsoll top")
    (HERE / f"top-{columns}.svg").write_text(without_network(picture))


def growing(machine: Machine, part: float) -> Machine:
    """Returns the machine after this part of the minute.

    The memory use begins at 30 % and reaches 100 % shortly before the minute ends.
    """
    from dataclasses import replace

    rise = min(0.3 + 0.75 * part, 1.0)
    gpus = (
        replace(
            gpu,
            dedicated_used_bytes=int((gpu.dedicated_used_bytes or 0) * rise),
            processes=tuple(
                replace(use, driver_bytes=int((use.driver_bytes or 0) * rise))
                for use in gpu.processes
            ),
        )
        for gpu in machine.gpus
    )
    return machine if rise == 1.0 else replace(machine, gpus=tuple(gpus))


def main() -> None:
    """Takes all pictures."""
    for columns in WIDTHS:
        for name, command in COMMANDS.items():
            take_command(name, command, columns)
        asyncio.run(take_top(columns))


if __name__ == "__main__":
    main()
