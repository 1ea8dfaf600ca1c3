"""Runs the code blocks of a documentation page as a reader would.

A page is run from top to bottom in one folder, beside a copy of `examples`:

- a block with a title (`python title="train.py"`) is a file of that name;
- a console block has commands, each after `$ `, and below each its output on stdout and stderr;
- in a shown output, a line `…` matches any lines, and `…` within a line matches any text;
- progress messages of slow commands (`PROGRESS`) are left out;
- `<!-- exit 1 -->` before a console block says that each of its commands must end with status 1;
- other languages, such as diff, are not run.

`python -m tests.pages docs/tutorial.md` runs a page, updates outputs that differ, and copies the
blocks to the Chinese page.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from tests.apart import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCS = ROOT / "docs"
BLOCK = re.compile(
    r"^(?:<!-- exit (?P<status>\d+) -->\n)?"
    r"(?P<fence>```+)(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?[ ]*\n"
    r"(?P<text>.*?)^(?P=fence)$",
    re.M | re.S,
)
COMMAND = re.compile(r"^\$ ((?:[^\n]*\\\n)*[^\n]*)\n?((?:(?!\$ )[^\n]*\n?)*)", re.M)
PROGRESS = re.compile(r"^plimsoll: (?:after \d+ s|building|waiting for)\b[^\n]*\n", re.M)
"""Progress messages, which appear only on slow machines."""
ENVIRONMENT = {"PYTHONIOENCODING": "utf-8", "TOKENIZERS_PARALLELISM": "false"}
SHOWN: str = re.findall(r"^torch==(.+)$", (ROOT / "constraints.txt").read_text("utf-8"), re.M)[0]
"""The version of PyTorch that printed the outputs shown on the pages."""
_MOST_SECONDS = 600
"""The time limit of a command, in seconds."""
_MOST_BETWEEN = 12
"""The number of printed lines in which `_place` searches for a shown line after a match."""


def pages() -> list[Path]:
    """Returns the English pages whose blocks are run."""
    folders = [*DOCS.glob("how-to/*.md"), *DOCS.glob("tour/*.md")]
    single = [DOCS / f"{name}.md" for name in ("tutorial", "errors", "comparisons", "explain")]
    found = [*single, *sorted(folders)]
    return [path for path in found if not path.name.endswith(".zh.md")]


def is_shown(torch: str) -> bool:
    """Returns whether the pages show the output of this PyTorch version, such as 2.13.0+cpu."""
    return torch.split("+")[0] == SHOWN


def in_chinese(page: Path) -> Path:
    """Returns the path of a page's Chinese version, even if there is no such file."""
    return page.with_suffix(".zh.md")


@dataclass(frozen=True)
class Block:
    """A fenced code block of a page."""

    language: str
    title: str | None
    status: int
    text: str
    start: int
    """The position of the block's text in the page."""


def blocks(page: str) -> list[Block]:
    """Returns the blocks in the page's order."""
    return [
        Block(
            match["language"], match["title"], int(match["status"] or 0), match["text"],
            match.start("text"),
        )
        for match in BLOCK.finditer(page)
    ]  # fmt: skip


@dataclass(frozen=True)
class Step:
    """A command of a page, with the output that the page shows."""

    what: str
    shown: str
    span: tuple[int, int]
    """The position of the shown output in the page."""
    printed: str = ""
    """The output that the command really printed."""
    status: int = 0
    """The exit status that the command really had."""
    wanted_status: int = 0

    @property
    def is_right(self) -> bool:
        """Returns whether the real output and status agree with the page."""
        return self.status == self.wanted_status and agrees(self.shown, self.printed)


def run(page: Path, folder: Path) -> Iterator[Step]:
    """Runs a page's commands in an empty folder. Yields each one with its output and status."""
    copy_examples(folder)
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.title:
            file = folder / block.title
            file.parent.mkdir(exist_ok=True)
            file.write_text(block.text, encoding="utf-8")
        elif block.language == "console":
            yield from _commands(block, folder)


def copy_examples(folder: Path) -> None:
    """Gives a folder a copy of `examples`."""
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__*"))


def shell(
    command: str, folder: Path, *, columns: int = 100, merged: bool = False
) -> subprocess.CompletedProcess[str]:
    """Runs a command in a folder as a reader without a GPU would.

    Args:
        command: The command line, for bash.
        folder: The working directory. plimsoll sees only the programs that this folder's commands
            started.
        columns: The width of the terminal.
        merged: Whether stderr is merged into stdout.
    """
    environment = {name: value for name, value in os.environ.items() if "PLIMSOLL" not in name}
    runtime = folder / ".runtime"
    runtime.mkdir(mode=0o700, exist_ok=True)
    path = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    own = {"COLUMNS": str(columns), "PATH": path, "XDG_RUNTIME_DIR": str(runtime)}
    done = subprocess.run(
        ["bash", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if merged else subprocess.PIPE,
        text=True,
        encoding="utf-8",
        check=False,
        cwd=folder,
        env={**environment, **ENVIRONMENT, **own},
        timeout=_MOST_SECONDS,
    )
    done.stdout = PROGRESS.sub("", done.stdout)
    done.stderr = PROGRESS.sub("", done.stderr or "")
    return done


def agrees(shown: str, printed: str) -> bool:
    """Returns whether the output agrees with the shown one, in which `…` matches any text."""
    lines = [
        r"(?:[^\n]*\n)*?" if line.strip() == "…" else _pattern(line) + r"[ ]*\n"
        for line in shown.rstrip().splitlines()
    ]
    text = printed.rstrip()
    return re.fullmatch("".join(lines), text + "\n" if text else "") is not None


def renewed(shown: str, printed: str) -> str:
    """Returns the new output, shortened with `…` in the same places as the shown output."""
    new = [line.rstrip() for line in printed.rstrip().splitlines()]
    old = shown.rstrip().splitlines()
    cut = next((number for number, line in enumerate(old) if line.strip() == "…"), len(old))
    lines = _as_shown(old[:cut], new if cut == len(old) else new[:cut])
    at = len(lines)
    for is_left_out, part in groupby(old[cut:], lambda line: line.strip() == "…"):
        if is_left_out:
            lines += part
            continue
        shown_lines = list(part)
        first, end = _place(shown_lines, new[at:])
        lines += _as_shown(shown_lines, new[at + first : at + end])
        at += end
    return "".join(f"{line}\n" for line in lines)


def _place(old: list[str], new: list[str]) -> tuple[int, int]:
    """Returns the range of `new` (printed lines) that resembles `old` (shown lines)."""
    places: list[int] = []
    for line in old:
        at = places[-1] + 1 if places else 0
        near = new[at : at + _MOST_BETWEEN] if places else new
        same = [one for one in near if agrees(line, one)]
        for found in same[:1] or difflib.get_close_matches(line, near, n=1):
            places.append(at + near.index(found))
    return (places[0], places[-1] + 1) if places else (0, 0)


def _as_shown(old: list[str], new: list[str]) -> list[str]:
    """Returns the new lines. Replaces each by the first old line that agrees with it, if any."""
    return [next((line for line in old if agrees(line, one)), one) for one in new]


def _pattern(line: str) -> str:
    return ".*?".join(map(re.escape, line.rstrip().split("…")))


def _commands(block: Block, folder: Path) -> Iterator[Step]:
    for match in COMMAND.finditer(block.text):
        span = (block.start + match.start(2), block.start + match.end(2))
        step = Step(match[1], match[2], span, wanted_status=block.status)
        printed, status = _output(match[1], folder)
        yield replace(step, printed=printed, status=status)


def _output(command: str, folder: Path) -> tuple[str, int]:
    """Returns a command's output on both streams, and its exit status."""
    done = shell(command, folder, merged=True)
    return done.stdout.replace(f"{folder}/", ""), done.returncode


def _renew(page: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        steps = list(run(page, Path(folder)))
    text = page.read_text(encoding="utf-8")
    for step in reversed(steps):
        if step.status != step.wanted_status:
            print(f"{page}: status {step.status}: {step.what}\n{step.printed}", file=sys.stderr)
        if not step.is_right and step.span[1]:
            start, end = step.span
            text = text[:start] + renewed(step.shown, step.printed) + text[end:]
    page.write_text(text, encoding="utf-8")
    if in_chinese(page).exists():
        _give_blocks(page, in_chinese(page))


def _give_blocks(page: Path, other: Path) -> None:
    text = other.read_text(encoding="utf-8")
    own = blocks(text)
    for new, old in reversed(list(zip(blocks(page.read_text("utf-8")), own, strict=True))):
        text = text[: old.start] + new.text + text[old.start + len(old.text) :]
    other.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        _renew(Path(argument))
