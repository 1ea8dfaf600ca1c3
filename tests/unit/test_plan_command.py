"""Tests the command that runs a changed script, and the line numbers in reports about that script.

The line numbers must be those of the original script.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from plimsoll.base.units import GiB, MiB
from plimsoll.prediction.fitting.original_lines import original_lines
from plimsoll.prediction.fitting.plan_command import plan_command
from plimsoll.prediction.fitting.script_text import ScriptText
from plimsoll.prediction.survey import AllocatorUse
from plimsoll.recordings.analysis.lines import LineShare
from plimsoll.torch.simulated.setup import Setup


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Makes an environment that has `python` and `plimsoll` on its PATH."""
    (tmp_path / "python").symlink_to(sys.executable)
    (tmp_path / "plimsoll").touch(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))


def command(
    allocator: str = "native", conf: str = "", setup: Setup | None = None, *arguments: str
) -> str:
    use = AllocatorUse(allocator, conf, 1, 1, fits=True)
    return plan_command("my script.py", arguments, setup or Setup(("T4",)), use)


def test_the_script_and_its_arguments_are_quoted() -> None:
    line = command("native", "", None, "--name", "it's; rm")
    assert shlex.split(line) == ["python", "my script.py", "--name", "it's; rm"]


def test_a_configuration_is_set_before_it() -> None:
    line = command("native", "expandable_segments:True")
    assert line == "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python 'my script.py'"


def test_plimsolls_allocator_is_under_plimsoll_run() -> None:
    assert command("elastic", "", None, "--steps", "3") == "plimsoll run 'my script.py' --steps 3"


def test_memory_that_spills_does_so_by_options() -> None:
    spills = Setup(("T4",), policy="spill", dedicated_bytes=6 * GiB, host_memory_bytes=64 * GiB)
    assert command("elastic", "", spills) == (
        "plimsoll run --policy spill --dedicated 6144MiB --shared 32768MiB 'my script.py'"
    )


def test_an_interpreter_that_no_name_means_is_given_by_its_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "python").symlink_to((tmp_path / "python").resolve())
    monkeypatch.setenv("PATH", str(tmp_path / "other"))
    assert command().startswith(f"{tmp_path / 'python'} ")
    assert command("elastic").startswith(f"{tmp_path / 'python'} -m plimsoll run ")


def test_lines_of_a_changed_script_have_their_old_numbers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.touch()
    changed = ScriptText(("import plimsoll", "first", "second"), (None, 1, 2))
    lines = ["train.py:1", "train.py:3 forward", f"{path}:2 main", "other.py:3 f", "unknown"]
    found = original_lines([LineShare(line, MiB, 1) for line in lines], path, changed)
    assert [share.line for share in found] == [
        "train.py, added: import plimsoll",
        "train.py:2 forward",
        f"{path}:1 main",
        "other.py:3 f",
        "unknown",
    ]
