"""Tests what `plimsoll doctor` reports on several machines, and what it says to install."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

import plimsoll
from plimsoll.base.errors import InputError, ScriptError
from plimsoll.cli.app import app
from plimsoll.integrations.diagnosis import diagnose
from plimsoll.integrations.diagnosis.parts import PREDICTING, Ability, Installed
from plimsoll.integrations.diagnosis.results import Diagnosis

if TYPE_CHECKING:
    from collections.abc import Callable

RUNNING = "run, install and record on a GPU"


class Machine:
    """A machine as doctor finds it; by default nothing is missing, and the libraries are built."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.has(gpus=1)
        self.finds("find_built", lambda _: Path("library.so"))
        self.finds("find_compiler", lambda _: "/usr/bin/g++")
        self.finds("compiler_for", lambda _: "/usr/bin/g++")
        self.finds("_try_to_predict", lambda: 3.25)
        self.finds("linux_instead", lambda: None)
        self.finds("versions.torch_version", lambda: (2, 13))
        self.finds("versions.is_cuda_build", lambda: True)

    def finds(self, name: str, function: Callable[..., object]) -> None:
        self._monkeypatch.setattr(f"plimsoll.integrations.diagnosis.diagnose.{name}", function)

    def has(self, *, gpus: int) -> None:
        self.finds("count_gpus", lambda: gpus)

    def lacks(self, name: str, message: str) -> None:
        def refuse(*_: object) -> None:
            raise InputError(message)

        self.finds(name, refuse)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def first_line() -> str:
    return str(plimsoll.doctor()).splitlines()[0]


def ability(name: str) -> Ability:
    (found,) = [one for one in plimsoll.doctor().abilities if one.name == name]
    return found


@pytest.mark.usefixtures("machine")
def test_where_all_is_there_the_first_line_says_so() -> None:
    assert first_line() == "All of plimsoll works here."
    assert plimsoll.doctor().is_complete
    assert ability(PREDICTING).note == "a tiny script was predicted in 3.2 s"
    assert "Does not work" not in str(plimsoll.doctor())


def test_without_pytorch_the_first_line_has_the_command_that_installs_it(machine: Machine) -> None:
    machine.lacks("versions.torch_version", "PyTorch is not installed here: pip install it")
    note = "PyTorch is not installed here"
    assert first_line() == (
        f"{PREDICTING} do not work here yet: {note}; next: pip install 'torch>=2.9'"
    )
    assert ability(PREDICTING) == Ability(PREDICTING, False, note, "pip install 'torch>=2.9'")
    assert ability(RUNNING) == Ability(RUNNING, False, note, "pip install 'torch>=2.9'")
    assert ability("gpus, replay, explain, view").works


def test_without_a_gpu_nothing_is_to_be_installed(machine: Machine) -> None:
    machine.has(gpus=0)
    assert first_line() == (
        "This machine has no NVIDIA GPU. Everything that needs no GPU works here."
    )
    assert ability(RUNNING) == Ability(RUNNING, False, "there is no NVIDIA GPU here")


@pytest.mark.parametrize(
    ("installer", "root", "command"),
    [
        ("apt-get", True, "apt-get install -y g++"),
        ("dnf", False, "sudo dnf install -y gcc-c++"),
        ("none", True, None),
    ],
)
def test_without_a_compiler_the_command_is_this_systems(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    installer: str,
    root: bool,
    command: str | None,
) -> None:
    machine.finds("find_built", lambda _: None)
    machine.lacks("compiler_for", "there is no compiler")
    monkeypatch.setattr("shutil.which", lambda name: name if name == installer else None)
    monkeypatch.setattr("os.geteuid", lambda: 0 if root else 1000)
    found = ability(PREDICTING)
    assert (found.works, found.command) == (False, command)
    said = f"{PREDICTING} do not work here{' yet' * bool(command)}: there is no C++ compiler"
    assert first_line().startswith(said)
    assert first_line().endswith(f"; next: {command}" if command else "plimsoll's library once")
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 1
    on_a_gpu = ability(RUNNING)
    assert on_a_gpu.works, "without the bridge it works too"
    assert on_a_gpu.command == command


def test_a_library_that_is_not_built_yet_is_no_fault(machine: Machine) -> None:
    machine.finds("find_built", lambda _: None)
    machine.lacks("_try_to_predict", "a trial would build it")
    assert first_line() == "All of plimsoll works here."
    assert ability(PREDICTING).command == "plimsoll doctor --build"


def test_a_trial_that_fails_is_told(machine: Machine) -> None:
    def fail() -> float:
        raise ScriptError("tiny.py", 1, reason="ImportError: libgomp.so.1 at tiny.py:1")

    machine.finds("_try_to_predict", fail)
    found = ability(PREDICTING)
    assert not found.works
    assert found.note is not None
    assert "libgomp.so.1" in found.note


def test_a_pytorch_without_cuda_is_named_only_where_there_is_a_gpu(machine: Machine) -> None:
    machine.finds("versions.is_cuda_build", lambda: False)
    assert ability(RUNNING).command == "pip install --force-reinstall torch"
    machine.has(gpus=0)
    assert ability(RUNNING).command is None


def test_on_another_system_it_says_where_linux_is(machine: Machine) -> None:
    machine.finds("linux_instead", lambda: "use WSL")
    assert first_line() == f"{PREDICTING} do not work here: Linux is needed; use WSL"
    works = {one.name: one.works for one in plimsoll.doctor().abilities}
    assert works == {
        "gpus, replay, explain, view": True, "top": False, PREDICTING: False,
        "discarding what a script writes": False, RUNNING: False,
    }  # fmt: skip


def test_the_text_lists_what_there_is_and_a_command_below_what_does_not_work() -> None:
    found = Diagnosis(
        [Installed("PyTorch", None), Installed("g++", "12", "for builds")],
        [Ability("view", True), Ability("predict", False, "no PyTorch", "pip install torch")],
    )
    assert str(found).splitlines() == [
        "predict does not work here yet: no PyTorch; next: pip install torch",
        "",
        "Does not work here:",
        "  predict  no PyTorch",
        "           pip install torch",
        "",
        "Works here:",
        "  view",
        "",
        "Installed:",
        "  PyTorch  no",
        "  g++      12; for builds",
    ]


def test_the_exit_status_says_whether_predict_works(machine: Machine) -> None:
    machine.has(gpus=0)
    done = CliRunner().invoke(app, ["doctor", "--json"])
    assert done.exit_code == 0
    told = json.loads(done.stdout)
    assert told["schema"] == 2
    assert told["is_complete"] is True
    assert told["predicts"] is True
    assert {row["name"] for row in told["installed"]} >= {"plimsoll", "Python", "PyTorch"}
    machine.lacks("versions.torch_version", "PyTorch is not installed here: pip install it")
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 1


def test_predictions_that_fail_come_before_what_a_command_mends(machine: Machine) -> None:
    machine.lacks("find_built", "/tmp/cache: anybody may write there")
    machine.finds("versions.is_cuda_build", lambda: False)
    assert first_line() == f"{PREDICTING} do not work here: /tmp/cache: anybody may write there"
    assert ability(RUNNING).command is not None


def test_what_a_command_mends_leaves_the_status_alone_where_predict_works(machine: Machine) -> None:
    machine.finds("versions.is_cuda_build", lambda: False)
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 0
    assert done.stdout.splitlines()[0] == (
        f"{RUNNING} do not work here yet: the installed PyTorch has no CUDA; next: "
        "pip install --force-reinstall torch"
    )


def test_libraries_are_built_only_when_that_is_asked_for(machine: Machine) -> None:
    built: list[str] = []
    machine.finds("build", lambda recipe: built.append(recipe.name))
    plimsoll.doctor()
    assert built == []
    CliRunner().invoke(app, ["doctor", "--build"])
    assert built == ["simulated-cuda", "bridge"]
    machine.finds("versions.is_cuda_build", lambda: False)
    built.clear()
    diagnose.build_libraries()
    assert built == ["simulated-cuda"]
