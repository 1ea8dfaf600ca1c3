"""Tests standard streams that are closed or full, and a full folder for temporary files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from plimsoll.recordings.reading import read_recording
from tests.recordings import SMALL

RECORDING = SMALL / "ends.live.pickle.gz"


def shell(redirected: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "plimsoll", *arguments]
    return subprocess.run(
        ["sh", "-c", f'"$@" {redirected}', "sh", *command],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


@pytest.mark.parametrize("arguments", [["gpus"], ["--version"], ["replay", "nowhere.plim"]])
def test_a_closed_standard_output_is_said(arguments: list[str]) -> None:
    done = shell(">&-", *arguments)
    assert done.returncode == 2
    assert done.stderr == "plimsoll: cannot print the answer: standard output is closed\n"


def test_a_full_standard_output_is_said() -> None:
    done = shell(">/dev/full", "gpus")
    assert done.returncode == 2
    assert done.stderr == "plimsoll: standard output: No space left on device\n"


def test_errors_are_not_printed_to_standard_output_where_standard_error_is_closed() -> None:
    done = shell("2>&-", "gpus", "nosuch")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")
    done = shell(">&- 2>&- <&-", "gpus")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


def test_an_answer_needs_no_standard_input() -> None:
    done = shell("<&-", "gpus", "H100")
    assert done.returncode == 0
    assert "H100" in done.stdout
    assert done.stderr == ""


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    done = shell("| head -c 1", "gpus")
    assert len(done.stdout) == 1
    assert done.stderr == ""


VERBS = (
    ["--help"],
    ["gpus"],
    ["gpus", "--json"],
    ["top", "--once"],
    ["top", "--json"],
    ["metrics", "--dashboard"],
    ["replay", str(RECORDING)],
    ["explain", "--no-advice", str(RECORDING)],
    ["explain", "--no-advice", "--json", str(RECORDING)],
)


@pytest.mark.parametrize("arguments", VERBS, ids=" ".join)
def test_an_answer_that_nobody_reads_ends_quietly(arguments: list[str]) -> None:
    assert unread(*arguments, streams="out") == (0, "")
    assert unread(*arguments, streams="out err") == (0, "")


@pytest.mark.parametrize("arguments", [["replay", "nowhere.plim"], ["gpus", "nosuch"], ["metrics"]])
def test_a_complaint_that_nobody_reads_is_bad_input_all_the_same(arguments: list[str]) -> None:
    assert unread(*arguments, streams="err") == (2, "")
    assert unread(*arguments, streams="out err") == (2, "")


def test_an_answer_is_whole_where_nobody_reads_the_notes() -> None:
    # The command writes its hint to stderr, a pipe that has no reader here.
    status, answer = unread("top", "--once", streams="err")
    assert status == 0
    assert answer


def unread(*arguments: str, streams: str) -> tuple[int, str]:
    """Runs a command with a pipe that has no reader. Returns its exit status and output.

    Args:
        arguments: The verb and its options.
        streams: Which of "out" and "err" go to the pipe.
    """
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "plimsoll", *arguments],
        stdout=writer if "out" in streams else subprocess.PIPE,
        stderr=writer if "err" in streams else subprocess.PIPE,
        text=True, check=False, timeout=120,
    )  # fmt: skip
    os.close(writer)
    return done.returncode, (done.stdout or "") + (done.stderr or "")


WRITES = """
import os, torch
tensor = torch.zeros(1 << 20, device="cuda")
for number in (1, 2):
    os.write(number, b"of a library")
"""


@pytest.mark.long
@pytest.mark.parametrize("redirected", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_what_a_program_prints_to_a_closed_stream_is_not_in_its_recording(
    redirected: str, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "script.py").write_text(WRITES)
    options = ("--simulate", "T4", "--record", str(tmp_path / "run.plim"))
    done = shell(redirected, "run", *options, str(tmp_path / "script.py"))
    assert done.returncode == 0, done.stderr
    assert read_recording(tmp_path / "run.plim").devices[0].event_count == 2


@pytest.mark.parametrize("redirected", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_a_recording_of_a_program_takes_no_closed_stream(redirected: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, plimsoll\n"
        "allocator = plimsoll.Allocator(plimsoll.SimulatedGpu('1GiB'))\n"
        f"with plimsoll.record({str(tmp_path / 'run.plim')!r}, allocator=allocator):\n"
        "    allocator.malloc('2MiB')\n"
        "    for number in (0, 1, 2):\n"
        "        try: os.write(number, b'of a library')\n"
        "        except OSError: pass\n"
    )
    subprocess.run(
        ["sh", "-c", f'"$@" {redirected}', "sh", sys.executable, str(program)], check=True
    )
    assert read_recording(tmp_path / "run.plim").devices[0].event_count == 2


@pytest.mark.long
@pytest.mark.parametrize("lines", [10, 100_000])
def test_a_script_whose_output_nobody_reads_ends_quietly(lines: int, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "script.py"
    script.write_text(f"for number in range({lines}): print(number)\n")
    status, output = unread("run", "--simulate", "T4", str(script), streams="out")
    assert (status, "Traceback" in output) == (1, False), output
