"""Tests the command `plimsoll explain`."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.commands import run_plimsoll
from tests.recordings import EXAMPLES

if TYPE_CHECKING:
    from pathlib import Path

TRAIN = EXAMPLES / "gpt2_adamw.pickle.gz"
FAILED = EXAMPLES / "gpt2_adamw_oom.pickle.gz"


command = partial(run_plimsoll, "explain")


def test_the_command_gives_json() -> None:
    done = command(str(FAILED), "--json", "--no-advice")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {"file", "device", "events", "card", "reserved", "peak", "fragmentation", "steps",
            "leaks", "out_of_memory", "advice", "tried", "notes"} <= set(found)  # fmt: skip
    assert found["card"]["context_bytes"] is None
    assert found["fits_limit"] is None
    assert found["out_of_memory"][0]["reason"] == "too_little"


def test_the_command_answers_about_a_limit_first() -> None:
    done = command(str(TRAIN), "--limit", "6GiB", "--no-advice")
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("The program does not fit in 6.00 GiB: out of memory at event ")
    assert "at its peak it allocates 8.11 GiB, 2.11 GiB more." in done.stdout.splitlines()[0]


@pytest.mark.parametrize(("limit", "fits", "status"), [("6GiB", False, 1), ("20GiB", True, 0)])
def test_whether_a_limit_is_enough_is_a_key_and_the_exit_status(
    limit: str, fits: bool, status: int
) -> None:
    done = command(str(TRAIN), "--limit", limit, "--no-advice", "--json")
    assert done.returncode == status, done.stderr
    assert json.loads(done.stdout)["fits_limit"] is fits


@pytest.mark.long
def test_the_command_counts_work_and_no_time() -> None:
    done = command(str(TRAIN), "--search-events", "30000")
    assert done.returncode == 0, done.stderr
    assert "(2 replays; --search-events ended the search early)" in done.stdout
    none = command(str(TRAIN), "--search-events", "0")
    assert none.stdout == command(str(TRAIN), "--no-advice").stdout
    refused = command(str(TRAIN), "--search-events", "-1")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == "plimsoll: the search cannot replay -1 events; 0 leaves it out\n"


@pytest.mark.parametrize("kind", ["missing", "truncated", "foreign", "text", "device", "gpu"])
def test_bad_input_is_one_clear_line(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "input"
    extra: list[str] = []
    match kind:
        case "truncated":
            path.write_bytes(FAILED.read_bytes()[:2000])
        case "foreign":
            path.write_bytes(b"\x80\x04cos\nsystem\n\x8c\x04true\x85R.")
        case "text":
            path.write_text("hello")
        case "device":
            path.write_bytes(FAILED.read_bytes())
            extra = ["--device", "7"]
        case "gpu":
            path.write_bytes(FAILED.read_bytes())
            extra = ["--gpu", "RTX 9999"]
    done = command(str(path), *extra)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("plimsoll: ")
    assert len(done.stderr.splitlines()) == 1
