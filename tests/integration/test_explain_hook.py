"""Tests the explanations of out-of-memory errors, and the warnings of growing leaks."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import TYPE_CHECKING

import pytest

from plimsoll import Allocator, InputError, OutOfMemoryError, SimulatedGpu
from plimsoll.base.units import MiB
from plimsoll.explanation.leak_watch import LeakWarning, LeakWatch
from plimsoll.explanation.oom_hook import OomHook
from plimsoll.recordings.reading import read_recording
from tests.simulated import PROGRAMS

pytest.importorskip("torch")

if TYPE_CHECKING:
    from pathlib import Path

FILLS = PROGRAMS / "explanation" / "fills_the_card.py"
TRAINS = PROGRAMS / "explanation" / "leaking_training.py"


def run(program: Path, how: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(program), how],
        cwd=folder,
        capture_output=True,
        check=False,
        text=True,
    )


def place(program: Path, text: str) -> str:
    """Returns "file:line" of the program's line with this text."""
    lines = program.read_text().splitlines()
    (number,) = (number for number, line in enumerate(lines, 1) if text in line)
    return f"{program}:{number}"


def the_explanation(folder: Path) -> str:
    (text,) = folder.glob("plimsoll-oom-*.txt")
    assert read_recording(text.with_suffix(".pickle")).devices
    return text.read_text()


def test_a_program_that_dies_leaves_its_explanation(tmp_path: Path) -> None:
    done = run(FILLS, "uncaught", tmp_path)
    assert done.returncode == 1
    in_order = (
        "Traceback",
        "torch.OutOfMemoryError: CUDA out of memory",
        "plimsoll: why there was no memory: plimsoll-oom-",
        "next: plimsoll view plimsoll-oom-",
    )
    places = [done.stderr.index(text) for text in in_order]
    assert places == sorted(places)
    text = the_explanation(tmp_path)
    assert text.startswith("CUDA out of memory. Tried to allocate 1024.00 MiB.")
    assert "Out of memory at event" in text
    assert f"{place(FILLS, 'torch.empty')} fill" in text
    assert "the card had too little left" in text
    assert "CUDA context of one process, measured (T4)" in text


def test_a_thread_that_dies_leaves_its_explanation(tmp_path: Path) -> None:
    done = run(FILLS, "in_a_thread", tmp_path)
    assert done.returncode == 0
    assert "Exception in thread" in done.stderr
    assert f"{place(FILLS, 'torch.empty')} fill" in the_explanation(tmp_path)


def test_an_error_that_is_caught_is_explained_where_it_is_asked_for(tmp_path: Path) -> None:
    done = run(FILLS, "caught", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True None\n"
    assert "Out of memory at event" in the_explanation(tmp_path)


def test_an_error_that_comes_of_it_is_explained_too(tmp_path: Path) -> None:
    done = run(FILLS, "cause_of_another", tmp_path)
    assert "SystemError: gave up" in done.stderr
    assert "Out of memory at event" in the_explanation(tmp_path)


def test_a_block_is_explained_where_errors_end_no_program(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    done = run(FILLS, "in_a_block", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "caught\n"
    assert "Out of memory at event" in the_explanation(tmp_path / "notes")


def test_other_errors_are_left_alone(tmp_path: Path) -> None:
    done = run(FILLS, "other", tmp_path)
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("ValueError: something else")
    assert list(tmp_path.glob("plimsoll-oom-*")) == []


def test_what_a_library_holds_outside_pytorch_is_the_cause(tmp_path: Path) -> None:
    """The library holds 8 GiB, but 7.96 GiB are reported.

    plimsoll assumes that CUDA's context is as large as in a training step. The context of this
    program is 40 MiB smaller.
    """
    run(FILLS, "beside_a_library", tmp_path)
    answer = the_explanation(tmp_path).split("\n\n")[1].splitlines()
    by_others = "7.96 GiB by other libraries of this process and 220.00 MiB by CUDA's context."
    assert f"is held outside PyTorch: {by_others}" in answer[1]
    run(FILLS, "uncaught", tmp_path)
    for text in tmp_path.glob("plimsoll-oom-*.txt"):
        says = "outside PyTorch" in text.read_text()
        assert says == ("7.96 GiB by other libraries" in text.read_text())


@pytest.mark.long
def test_what_goes_wrong_with_the_explanation_hides_nothing(tmp_path: Path) -> None:
    done = run(FILLS, "nowhere_to_write", tmp_path)
    assert done.returncode == 1
    assert "torch.OutOfMemoryError: CUDA out of memory" in done.stderr
    last = done.stderr.rstrip().splitlines()[-1]
    assert last.startswith("plimsoll: the error above could not be explained: ")


def test_what_was_hooked_in_is_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[BaseException] = []
    monkeypatch.setattr(sys, "excepthook", lambda _kind, error, _trace: seen.append(error))
    before = sys.excepthook
    hook = OomHook()
    hook.install()
    assert sys.excepthook is not before
    error = ValueError("something")
    sys.excepthook(ValueError, error, None)
    assert seen == [error]
    hook.remove()
    assert sys.excepthook is before
    removed = OutOfMemoryError("", requested_bytes=1, free_bytes=0, total_bytes=0,
                               limit_bytes=None, allocated_bytes=0, reserved_bytes=0)  # fmt: skip
    assert hook.explain(removed) is None


# --- leaks ---------------------------------------------------------------------------------------


def healthy_step(allocator: Allocator) -> None:
    blocks = [allocator.malloc(size * 1024) for size in range(1, 30)]
    for block in blocks:
        allocator.free(block)


def test_a_leak_is_warned_of_while_the_program_runs() -> None:
    allocator = Allocator(SimulatedGpu("8GiB"))
    with warnings.catch_warnings(record=True) as caught, LeakWatch(allocator=allocator) as watch:
        warnings.simplefilter("always")
        for number in range(100):
            healthy_step(allocator)
            allocator.malloc("1MiB")
            watch.step()
            if number == 70:
                assert len(caught) == 1
    (leak,) = watch.leaks
    assert leak.slope_bytes == MiB
    assert "test_explain_hook.py" in leak.what
    (warning,) = caught
    assert warning.category is LeakWarning
    assert warning.filename == __file__
    assert str(warning.message).startswith(f"{leak.what} keeps 1.00 MiB more GPU memory")
    first, second = str(watch).splitlines()
    assert first == "1 leak found in 100 of 256 steps, not watching"
    assert second.startswith(f"  {leak.what} keeps 1.00 MiB more GPU memory each step")
    assert repr(watch) == f"<LeakWatch {first}>"


def test_a_healthy_program_is_not_warned_of() -> None:
    allocator = Allocator(SimulatedGpu("8GiB"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with LeakWatch(steps=40, allocator=allocator) as watch:
            for _ in range(60):
                healthy_step(allocator)
                watch.step()
    assert watch.leaks == []


def test_a_watch_ends_by_itself_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    allocator = Allocator(SimulatedGpu("8GiB"))
    with LeakWatch(steps=10, allocator=allocator) as watch:
        for number in range(20):
            assert bool(list(tmp_path.iterdir())) == (number < 10)
            healthy_step(allocator)
            watch.step()
    assert list(tmp_path.iterdir()) == []
    with LeakWatch(allocator=allocator):  # a watch without any events
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_recording_that_is_kept_goes_on_when_the_watch_has_ended(tmp_path: Path) -> None:
    allocator = Allocator(SimulatedGpu("8GiB"))
    path = tmp_path / "run.plim"
    watch = LeakWatch(steps=20, allocator=allocator, record=path)
    with warnings.catch_warnings(record=True) as caught, watch:
        warnings.simplefilter("always")
        for _ in range(30):
            allocator.malloc("1MiB")
            watch.step()
        (leak,) = watch.leaks
        assert leak.grown_bytes <= 20 * MiB
        assert "20 of 20 steps, not watching" in str(watch)
    assert [warning.category for warning in caught] == [LeakWarning]
    recording = read_recording(path)
    assert recording.is_whole
    assert recording.devices[0].event_count >= 30
    with pytest.raises(InputError, match="exists already"), watch:
        pass


@pytest.mark.long
def test_a_watch_of_optimizers_steps_warns_and_ends_by_itself(tmp_path: Path) -> None:
    done = run(TRAINS, "to_the_end_of_the_watch", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "18 1 1\n31 1 1\n32 1 0\n"
    assert done.stderr.count("LeakWarning") == 1
    assert f"{place(TRAINS, 'optimizer.step')}: LeakWarning" in done.stderr


@pytest.mark.long
def test_steps_that_are_told_are_not_counted_twice(tmp_path: Path) -> None:
    done = run(TRAINS, "with_steps_that_are_told", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "20\n"
    assert "32.00 KiB more GPU memory each step" in done.stderr


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(InputError, match="a leak shows in 8 steps or more"):
        LeakWatch(steps=3)
    with pytest.raises(InputError, match=r"a recording is a \.plim file"):
        LeakWatch(record="run.html")


@pytest.mark.long
def test_a_training_loop_is_watched_by_its_optimizers_steps(tmp_path: Path) -> None:
    done = run(TRAINS, "of_the_whole_loop", tmp_path)
    assert done.returncode == 0, done.stderr
    line = f"{place(TRAINS, 'torch.ones')} train"
    assert done.stdout == f"{line} 16384.0\n"
    assert f"LeakWarning: {line} keeps 16.00 KiB more GPU memory" in done.stderr


def test_a_warning_says_the_change_in_the_recognisers_words(tmp_path: Path) -> None:
    done = run(TRAINS, "of_sums_and_lists", tmp_path)
    assert done.returncode == 0, done.stderr
    text = [line for line in done.stderr.splitlines() if "LeakWarning: " in line]
    summed = [line for line in text if place(TRAINS, "total + model") in line]
    (collected,) = [line for line in text if place(TRAINS, "no_grad").rpartition(":")[0] in line
                    and "kept.append(" in line]  # fmt: skip
    assert summed
    assert all("if no backward pass follows, put what runs " in line for line in summed)
    assert all(line.endswith(" under torch.no_grad()") for line in summed)
    assert "keep what is collected there in host memory" in collected
    assert collected.endswith("kept.append(torch.zeros(4096, device='cuda').cpu())")


def test_a_recogniser_that_fails_leaves_a_general_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a recogniser's own")

    monkeypatch.setattr("plimsoll.explanation.growing_lines.cause_of_leak", fail)
    allocator = Allocator(SimulatedGpu("8GiB"))
    with warnings.catch_warnings(record=True) as caught, LeakWatch(allocator=allocator) as watch:
        warnings.simplefilter("always")
        for _ in range(40):
            allocator.malloc("1MiB")
            watch.step()
    (warning,) = caught
    assert str(warning.message).endswith("copies in host memory (.detach().cpu())")
