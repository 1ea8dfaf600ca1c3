"""Tests `plimsoll view`: its output, and its exit status."""

from __future__ import annotations

import gzip
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.commands import run_plimsoll
from tests.faults import limited_files
from tests.recordings import EXAMPLES
from tests.waiting import without_beats

RECORDING = EXAMPLES / "gpt2_adamw.pickle.gz"


plimsoll = partial(run_plimsoll, "view", seconds=120)


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "run.pickle.gz"
    shutil.copy(RECORDING, path)
    return path


def test_it_says_what_it_wrote(recording: Path) -> None:
    done = plimsoll(recording)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{recording.parent / 'run.html'}: 14,817 events, 4,899 blocks, ")
    assert without_beats(done.stderr) == ""


def test_json_has_base_units_and_null_for_what_is_not(recording: Path) -> None:
    done = plimsoll(recording, "--json", "-o", recording.parent / "page.html")
    said = json.loads(done.stdout)
    assert said["page_bytes"] == (recording.parent / "page.html").stat().st_size
    assert said["summed_up_below_bytes"] is None


def test_an_export_is_written(recording: Path) -> None:
    done = plimsoll(recording, "--export", "speedscope", "--json")
    said = json.loads(done.stdout)
    assert said["file"] == str(recording.parent / "run.speedscope.json")
    assert json.loads((recording.parent / "run.speedscope.json").read_text())["profiles"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--export", "svg"], "no such export: 'svg'"),
        (["--serve", "-o", "page.html"], "--serve writes no file"),
        (["--serve", "--export", "csv"], "--serve writes no file"),
        (["--export", "csv", "OTHER"], "one recording at a time"),
        (["missing.pickle"], "no such file"),
        (["-o", "x.png"], "x.png: a page is a .html or .htm file; name it x.html"),
        (["--export", "csv", "-o", "x.html"], "an export to csv is a .csv file; name it x.csv"),
        (["--export", "perfetto", "-o", "x.csv"], "is a .json file; name it x.json"),
    ],
)
def test_bad_requests_end_with_one_clear_line(
    recording: Path, arguments: list[str], message: str
) -> None:
    done = plimsoll(recording, *(str(recording) if one == "OTHER" else one for one in arguments))
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_page_is_not_overwritten(recording: Path) -> None:
    page = recording.parent / "run.html"
    page.write_text("mine")
    done = plimsoll(recording)
    assert (done.returncode, page.read_text()) == (2, "mine")
    assert done.stderr == (
        f"plimsoll: {page}: exists already and is not overwritten; --force overwrites it\n"
    )
    assert plimsoll(recording, "--force").returncode == 0


@pytest.mark.long
def test_a_damaged_recording_ends_with_one_clear_line(tmp_path: Path) -> None:
    content = gzip.decompress(RECORDING.read_bytes())
    for name, part in (("cut", content[: len(content) // 2]), ("empty", b""), ("text", b"hello")):
        file = tmp_path / name
        file.write_bytes(part)
        done = plimsoll(file)
        assert done.returncode == 2, name
        assert done.stderr.startswith(f"plimsoll: {file}: ")
        assert done.stderr.count("\n") == 1
        assert not (tmp_path / f"{name}.html").exists()


def hear_interrupts() -> None:
    """Restores the default action of SIGINT; a process started in the background may ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_what_a_browser_is_started_with_is_no_address_of_the_page(
    recording: Path, tmp_path: Path
) -> None:
    browser = tmp_path / "browser"
    browser.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\ncp "${{1#file://}}" {tmp_path}/opened.part\n'
        f"mv {tmp_path}/opened.part {tmp_path}/opened\n"
    )
    browser.chmod(0o700)
    ours, terminal = pty.openpty()
    command = [sys.executable, "-m", "plimsoll", "view", str(recording), "--serve", "--open"]
    try:
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=terminal, text=True,
            preexec_fn=hear_interrupts, env=os.environ | {"BROWSER": f"{browser} %s"},
        ) as process:  # fmt: skip
            try:
                assert process.stdout is not None
                url = process.stdout.readline().strip()
                deadline = time.monotonic() + 60
                while not (tmp_path / "opened").exists():
                    assert process.poll() is None
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
                arguments = (tmp_path / "arguments").read_text()
                assert url.split("/")[3] not in arguments
                assert url in (tmp_path / "opened").read_text()
                process.send_signal(signal.SIGINT)
                assert process.wait(30) == 0
                assert not Path(arguments.strip().removeprefix("file://")).exists()
            finally:
                process.kill()
    finally:
        os.close(ours)
        os.close(terminal)


@pytest.mark.parametrize("kind", ["page", "perfetto", "speedscope", "csv", "parquet"])
def test_a_full_disk_is_told_with_the_files_name(recording: Path, kind: str) -> None:
    out = recording.parent / "out"
    export = [] if kind == "page" else ["--export", kind]
    with limited_files(100):
        done = plimsoll(recording, *export, "-o", out)
    assert done.returncode == 2
    assert done.stderr == f"plimsoll: {out}: cannot be written: File too large\n"
    assert [path.name for path in recording.parent.iterdir()] == [recording.name]


def test_serving_says_where_and_answers(recording: Path) -> None:
    command = [sys.executable, "-m", "plimsoll", "view", str(recording), "--serve", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, preexec_fn=hear_interrupts
    ) as process:
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            with urlopen(url, timeout=30) as answer:
                assert answer.read().startswith(b"<!doctype html>")
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
        finally:
            process.kill()
