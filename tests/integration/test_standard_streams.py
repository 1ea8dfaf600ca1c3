"""Standard streams that are closed or full, and a full folder for temporary files."""

from __future__ import annotations

import subprocess
import sys

import pytest


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
    assert done.stderr == "plimsoll: standard output is closed, and the answer goes there\n"


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
