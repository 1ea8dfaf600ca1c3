"""Keeps the whole output of commands in tests/data/screens, as readable text files.

A file begins with the command, after `$ `. The exit status, stdout and stderr follow. The command
runs in a folder with a copy of `examples`, and its terminal is 80 columns wide. Words in capitals
replace parts that vary (`VARYING`); progress messages of slow commands (`PROGRESS`) are left out.
Files in a folder `long` belong to commands that take long.

`python -m tests.screens` runs every command and rewrites its file. `python -m tests.screens FILE`
does so for one command; a new file needs only its first line.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from tests.apart import ROOT
from tests.pages import copy_examples, shell

SCREENS = ROOT / "tests" / "data" / "screens"
VARYING = [
    (re.compile(pattern, re.M), words)
    for pattern, words in (
        (r"\bin \d+(?:\.\d+)? s\b", "in SECONDS s"),
        (r"^(  host memory +).*", r"\1SIZE, estimated"),
        (r"\S+ \S+(?= of host memory$)", "SIZE"),
        (r"(\d blocks, )\S+ KiB$", r"\1SIZE"),
        (r"^(  (?:plimsoll|Python|PyTorch|C\+\+ compiler|prometheus-client)  +).*", r"\1VERSION"),
        (r"^(  system  +).*", r"\1SYSTEM"),
        (r"^(  discarding what a script writes  +).*", r"\1by MECHANISM"),
        (r"(?<=^running in )\d+ process(?:es)?", "PROCESSES"),
    )
]


def screens() -> list[Path]:
    """Returns the files, in the order of their names."""
    return sorted(SCREENS.rglob("*.txt"))


def command_of(screen: Path) -> str:
    """Returns the command that a file begins with."""
    return screen.read_text(encoding="utf-8").splitlines()[0].removeprefix("$ ")


def screen_of(command: str) -> str:
    """Runs a command. Returns the text that the command's file should have."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        copy_examples(folder)
        done = shell(command, folder, columns=80)
        outputs = [output.replace(f"{folder}/", "") for output in (done.stdout, done.stderr)]
    parts = [f"$ {command}\nexit status: {done.returncode}\n"]
    for name, output in zip(("stdout", "stderr"), outputs, strict=True):
        parts.append(f"----- {name} -----\n{output}")
    text = "".join(parts)
    for pattern, words in VARYING:
        text = pattern.sub(words, text)
    return text


def _renew(screen: Path) -> None:
    screen.write_text(screen_of(command_of(screen)), encoding="utf-8")
    print(screen.relative_to(ROOT))


if __name__ == "__main__":
    for screen in [Path(one).resolve() for one in sys.argv[1:]] or screens():
        _renew(screen)
