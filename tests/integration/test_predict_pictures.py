"""Tests predictions as pictures: `predict --plot` and `predict --view`."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from plimsoll.base.units import MiB
from plimsoll.prediction.predict import predict
from tests.commands import run_plimsoll
from tests.recordings import ROOT
from tests.simulated import PROGRAMS

pytest.importorskip("torch")

LAYERS = PROGRAMS / "prediction" / "two_layers.py"
PROCESSES = PROGRAMS / "prediction" / "processes.py"


predicted = partial(run_plimsoll, "predict")


class TestPlot:
    @pytest.mark.long
    def test_it_follows_the_answer_a_hundred_columns_wide_without_colour_in_a_pipe(self) -> None:
        done = predicted("--plot", "--gpu", "T4", LAYERS, "--", "4096")
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert lines[0].startswith(f"{LAYERS} fits on T4: ")
        place = next(i for i, line in enumerate(lines) if line.startswith("T4: memory over "))
        picture = lines[place:]
        assert max(map(len, picture)) == 100
        assert picture[13].startswith("MiB └")
        assert picture[13].count("┴") == 2
        assert picture[14].split() == ["step", "1", "step", "2"]
        assert "░░ activations" in picture[15]
        assert "\x1b" not in done.stdout

    @pytest.mark.long
    def test_it_has_colour_on_a_terminal(self) -> None:
        leader, follower = pty.openpty()
        command = [sys.executable, "-m", "plimsoll", "predict", "--plot", str(LAYERS), "--", "64"]
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "70"}
        environment.pop("NO_COLOR", None)
        shown = b""
        with subprocess.Popen(command, stdout=follower, stderr=follower, env=environment):
            os.close(follower)
            try:
                while part := os.read(leader, 1 << 16):
                    shown += part
            except OSError:  # the program has ended
                pass
        os.close(leader)
        assert b"\x1b[34m" in shown  # blue, the colour of parameters
        axis = next(line for line in shown.decode().splitlines() if line.startswith("MiB └"))
        assert len(axis) == 70

    @pytest.mark.long
    def test_several_cards_are_on_one_scale(self) -> None:
        cards = ("--gpu", "T4", "--gpu", "H100")
        done = predicted("--plot", *cards, LAYERS, "--", "64")
        assert done.returncode == 0, done.stderr
        answer = done.stdout.splitlines()[0]
        assert answer.endswith(" fits on T4, H100")
        assert "\ncard " in done.stdout
        assert "T4: memory over " in done.stdout
        assert "H100: memory over " in done.stdout

    def test_a_script_that_never_touches_cuda_has_no_picture(self, tmp_path: Path) -> None:
        script = tmp_path / "script.py"
        script.write_text("print('hello')")
        done = predicted("--plot", script)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [f"{script} never touches CUDA: it needs no GPU memory."]

    def test_it_is_for_people(self) -> None:
        done = predicted("--plot", "--json", LAYERS, "--", "64")
        assert done.returncode == 2
        assert "with --json the timeline is in the answer" in done.stderr


@pytest.mark.long
def test_the_timeline_reaches_the_peak_and_is_plain_data() -> None:
    found = predict(LAYERS, ["4096"])
    assert found.timeline is not None
    assert max(found.timeline.reserved_bytes) == found.peak_reserved_bytes
    highest = max(found.timeline.allocated_bytes)
    # PyTorch's counter also counts the unused ends of blocks that it did not split.
    assert found.peak_allocated_bytes - highest < 2 * MiB
    assert len(found.timeline.step_ends) == 2
    same = type(found).from_dict(json.loads(json.dumps(found.to_dict())))
    assert same == found


class TestView:
    @pytest.mark.long
    def test_the_page_is_written_beside_the_answer(self, tmp_path: Path) -> None:
        done = predicted("--view", "out.html", LAYERS, "--", "64", folder=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"{LAYERS} fits on H100: ")
        assert done.stdout.splitlines()[-1].startswith("out.html: ")
        page = (tmp_path / "out.html").read_text()
        assert "two_layers.py on H100" in page
        assert sorted(path.name for path in tmp_path.iterdir()) == ["out.html"]

    @pytest.mark.long
    def test_two_cards_are_side_by_side_and_json_stays_json(self, tmp_path: Path) -> None:
        page = tmp_path / "out.html"
        cards = ("--gpu", "T4", "--gpu", "H100")
        done = predicted("--view", page, "--json", *cards, LAYERS, "--", "64")
        assert done.returncode == 0, done.stderr
        assert [json.loads(line)["gpu"] for line in done.stdout.splitlines()] == ["T4", "H100"]
        assert "two_layers.py on T4" in page.read_text()
        assert str(page) in done.stderr

    @pytest.mark.long
    def test_of_a_script_that_does_not_fit_it_shows_what_it_would_take(
        self, tmp_path: Path
    ) -> None:
        page = tmp_path / "out.html"
        small = ("--gpu", "T4", "--dedicated", "100MiB")
        done = predicted("--view", page, *small, LAYERS, "--", "16384")
        assert done.returncode == 1, done.stderr
        assert page.exists()

    @pytest.mark.long
    def test_it_is_not_overwritten_unless_asked_and_that_is_said_before_the_run(
        self, tmp_path: Path
    ) -> None:
        page = tmp_path / "out.html"
        page.write_text("mine")
        done = predicted("--view", page, LAYERS, "--", "64")
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr == (
            f"plimsoll: {page}: exists already and is not overwritten; --force overwrites it\n"
        )
        assert page.read_text() == "mine"
        assert predicted("--view", page, "--force", LAYERS, "--", "64").returncode == 0
        assert page.read_text() != "mine"

    @pytest.mark.parametrize(
        ("name", "problem"),
        [
            ("out.txt", "a page is a .html or .htm file; name it out.html"),
            ("none/out.html", "cannot be written: No such file or directory"),
        ],
    )
    def test_bad_names_are_refused_before_the_run(
        self, tmp_path: Path, name: str, problem: str
    ) -> None:
        done = predicted("--view", name, LAYERS, "--", "64", folder=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert problem in done.stderr

    def test_jobs_have_no_page(self, tmp_path: Path) -> None:
        done = predicted("--view", tmp_path / "out.html", "--nproc-per-node", "2", LAYERS)
        assert done.returncode == 2
        assert "is a job, and a page shows a program of one process" in done.stderr

    def test_a_script_without_cuda_has_an_answer_and_no_page(self, tmp_path: Path) -> None:
        script = tmp_path / "script.py"
        script.write_text("print('hello')")
        done = predicted("--view", tmp_path / "out.html", script)
        assert done.returncode == 2
        assert done.stdout.startswith(f"{script} never touches CUDA")
        assert "there is nothing to view" in done.stderr


def test_a_check_has_no_pictures(tmp_path: Path) -> None:
    for options in (("--plot",), ("--view", tmp_path / "out.html")):
        done = predicted("--check", ROOT / "examples" / "none.plim", *options, LAYERS)
        assert done.returncode == 2
        assert "do not go with --check" in done.stderr
