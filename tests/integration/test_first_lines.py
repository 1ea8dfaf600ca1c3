"""Tests the first lines that commands print, on terminals of 60 to 200 columns and in a pipe."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from plimsoll.base.units import format_size
from plimsoll.engine.replays.replay import replay
from plimsoll.engine.replays.text import replays_text
from plimsoll.explanation.explain import explain
from plimsoll.explanation.parts import ScriptRun
from plimsoll.explanation.text import explanation_text
from plimsoll.recordings.analysis.leaks import Leak
from tests.commands import run_plimsoll
from tests.recordings import EXAMPLES

if TYPE_CHECKING:
    from pathlib import Path

    from plimsoll.explanation.explanation import Explanation

TRAIN, FAILED = (EXAMPLES / f"gpt2_adamw{end}.pickle.gz" for end in ("", "_oom"))
COPIED = ("Try: ", "next: ", "     ")
"""The beginnings of lines that plimsoll prints for copying. plimsoll never folds these lines."""
VERBS = {
    "gpus": (["gpus", "4090"], r"name +memory .*"),
    "replay": (
        ["replay", str(TRAIN), "--limit", "6GiB"],
        r"The program does not fit in 6\.00 GiB: .*",
    ),
    "explain": (["explain", str(FAILED)], r"Out of memory: 1\.54 GiB was .*"),
    "view": (["view", str(FAILED), "-o", "OUT", "--force"], r".*out\.html:.*"),
    "top": (["top", "--once"], r"(no GPU|\d+ (simulated )?GPU).*"),
}


def command(verb: str, folder: Path) -> list[str]:
    arguments, _ = VERBS[verb]
    out = str(folder / "out.html")
    return [sys.executable, "-m", "plimsoll", *(out if one == "OUT" else one for one in arguments)]


def on_a_terminal(words: list[str], width: int, **environment: str) -> str:
    """Returns a command's output on a terminal with this many columns, stderr included."""
    own = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS")}
    leader, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("4H", 50, width, 0, 0))
    with subprocess.Popen(
        words, stdin=inside, stdout=inside, stderr=inside, start_new_session=True,
        env={**own, "TERM": "xterm-256color", **environment},
    ):  # fmt: skip
        os.close(inside)
        shown = b""
        with suppress(OSError):  # Linux reports EIO when the other end has closed
            while part := os.read(leader, 1 << 16):
                shown += part
    os.close(leader)
    return shown.decode().replace("\r\n", "\n")


def plain(shown: str) -> list[str]:
    """Returns the lines that stay on the screen, without colours."""
    without = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown)
    return [line.rpartition("\r")[2] for line in without.splitlines()]


def in_width(line: str, width: int) -> bool:
    """Returns whether a line fits. A single word, such as a path, and a line to copy always fit."""
    return len(line) <= width or line.startswith(COPIED) or len(line.split()) == 1


@pytest.mark.parametrize("width", [60, 200])
@pytest.mark.parametrize("verb", VERBS)
def test_a_terminal_gets_the_answer_first_in_its_width_and_in_colour(
    verb: str, width: int, tmp_path: Path
) -> None:
    shown = on_a_terminal(command(verb, tmp_path), width)
    lines = [line for line in plain(shown) if line]
    assert re.fullmatch(VERBS[verb][1], lines[0])
    assert [line for line in lines if not in_width(line, width)] == []
    assert re.search(r"\x1b\[[\d;]*m", shown)


@pytest.mark.parametrize("verb", VERBS)
def test_a_pipe_gets_no_colour_even_where_colour_is_forced(verb: str, tmp_path: Path) -> None:
    done = subprocess.run(
        command(verb, tmp_path), capture_output=True, text=True, check=False,
        env={**os.environ, "FORCE_COLOR": "1", "TERM": "xterm-256color"},
    )  # fmt: skip
    assert re.fullmatch(VERBS[verb][1], done.stdout.splitlines()[0])
    assert "\x1b" not in done.stdout + done.stderr


def test_a_terminal_without_colour_gets_none() -> None:
    words = [sys.executable, "-m", "plimsoll", "gpus", "4090"]
    shown = on_a_terminal(words, 80, NO_COLOR="1")
    assert re.search(r"\x1b\[(?:\d+;)*[34]\d", shown) is None
    assert plain(shown)[1].startswith("RTX 4090 ")


def test_gpus_are_filtered_by_any_spelling() -> None:
    done = run_plimsoll("gpus", "rtx-4090")
    assert done.returncode == 0, done.stderr
    assert [line.split("  ")[0] for line in done.stdout.splitlines()[1:]] == [
        *("RTX 4090", "RTX 4090 Laptop"),
    ]


def test_a_gpu_that_nobody_knows_is_one_line() -> None:
    done = run_plimsoll("gpus", "4091")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("plimsoll: no GPU's name contains '4091'; did you mean RTX 4090")
    assert done.stderr.count("\n") == 1


# --- other widths, in one process ----------------------------------------------------------------


@pytest.fixture(scope="module")
def explained() -> Explanation:
    return explain(TRAIN, search_events=300_000)


@pytest.mark.parametrize("width", [60, 80, 97, 120, 200])
def test_explanations_and_replays_follow_the_width(width: int, explained: Explanation) -> None:
    confs = ["", "expandable_segments:True", "max_split_size_mb:128,roundup_power2_divisions:4"]
    replays = [result for conf in confs for result in replay(TRAIN, conf=conf)]
    for text in (explanation_text(explained, width), replays_text(replays, width)):
        lines = text.splitlines()
        assert [line for line in lines if not in_width(line, width)] == []
        assert max(map(len, lines)) > 0.6 * min(width, 100)


def test_a_table_of_replays_never_loses_the_names(explained: Explanation) -> None:
    lines = replays_text(list(replay(TRAIN, conf="expandable_segments:True")), 60).splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("configuration "))
    assert lines[place + 1].startswith("expandable_segments:True ")
    assert "8.92 GiB" in lines[place + 1]
    assert explained.tried > 0


def test_the_answer_is_followed_by_the_reason_and_a_line_to_copy(explained: Explanation) -> None:
    answer, why, helps, copied = str(replace(explained, causes=[])).splitlines()[:4]
    assert answer == (
        "At its peak the program reserves 9.52 GiB. Live tensors take 8.11 GiB of it; 1.41 GiB "
        "(14.8%) is free."
    )
    peak = explained.peak
    held, held_bytes = max(peak.by_category.items(), key=lambda each: each[1])
    assert why == (
        f"Why: the largest part of the peak is {held}, {format_size(held_bytes)}. The line that "
        "holds the most is gpt2_adamw.py:52 forward, 2.30 GiB."
    )
    best = explained.advice[0]
    assert helps.startswith(f"plimsoll tried a change that helps: {best.what} (saves ")
    assert copied == f"Try: {best.how}"
    (cause,) = explained.causes
    found, *_ = (line for line in str(explained).splitlines() if line.startswith("Why: "))
    assert found.startswith(f"Why: {cause.sentence}. What may help (not tried): {cause.change}.")


def test_the_first_line_says_that_categories_are_a_guess_by_lifetimes(
    explained: Explanation,
) -> None:
    guess = "Categories are guessed from lifetimes: the recording has no call stacks."
    for source in ("stacks", "nothing"):
        known = replace(explained, peak=replace(explained.peak, categories_from=source))
        assert guess not in str(known)
    guessed = replace(explained, peak=replace(explained.peak, categories_from="lifetimes"))
    leak = Leak("blocks of 64.00 KiB", 12 << 20, 0.999, 84 << 20, 7, 1234)
    for each in (guessed, replace(guessed, leaks=[leak]), replace(guessed, limit_bytes=1 << 40)):
        first, *more = str(each).splitlines()
        assert first.endswith(guess)
        assert guess not in "".join(more)


def test_several_lines_to_change_are_one_line_to_copy(explained: Explanation) -> None:
    ran = ScriptRun("my train.py", ["--n", "8"], "RTX 4090", 1, 1, True, True, 2)
    best = replace(explained.advice[0], kind="script", how="a = 1\nb = 2")
    lines = str(replace(explained, script=ran, advice=[best])).splitlines()
    assert (
        lines[3] == "Try: plimsoll fit 'my train.py' --gpu 'RTX 4090' --apply changed.py -- --n 8"
    )


def test_a_leak_is_the_answer_with_its_line(explained: Explanation) -> None:
    leak = Leak("train.py:30 step", 12 << 20, 0.999, 840 << 20, 70, 1234)
    answer, why = str(replace(explained, leaks=[leak])).splitlines()[:2]
    assert answer == "The program leaks: train.py:30 step holds 12.00 MiB more each step."
    assert why == (
        "Why: over the examined steps, train.py:30 step has kept 840.00 MiB in 70 more blocks."
    )


def test_why_it_ran_out_comes_before_a_leak(explained: Explanation) -> None:
    failed = explain(FAILED, advice=False)
    leak = Leak("train.py:30 step", 12 << 20, 0.999, 84 << 20, 7, 1234)
    lines = str(replace(failed, leaks=[leak])).splitlines()
    assert lines[0].startswith("Out of memory: 1.54 GiB was asked for, with 4.85 GiB allocated")
    assert lines[1].startswith("Why: the card had room, but the program has a limit ")
    assert not lines[2].startswith("Why: ")
    assert explained.out_of_memory == []


@pytest.mark.long
def test_a_script_that_grows_is_told_so_and_how_to_find_the_line(tmp_path: Path) -> None:
    script = tmp_path / "grows.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Linear(1024, 1024, device='cuda')\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "kept = []\n"
        "for step in range(14):\n"
        "    out = model(torch.randn(1024, 1024, device='cuda'))\n"
        "    out.sum().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
        "    kept.append(out)\n"
    )
    words = [sys.executable, "-m", "plimsoll", "predict", str(script), "--gpu", "RTX 4060 Laptop"]
    lines = plain(on_a_terminal(words, 160))
    assert "  grows each step      4.00 MiB, and did so in the last 8 steps" in lines
    assert any(
        line.startswith(f"Why: {script}:6 keeps 4.00 MiB more with each pass of its loop")
        for line in lines
    )
