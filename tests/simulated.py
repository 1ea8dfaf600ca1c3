"""Runs programs on simulated GPUs for tests.

A program is a file, a few lines of text, or a function in a test's own file. Importing PyTorch on
simulated GPUs takes seconds, so one process imports it and forks for each program. If the program
is a function, the fork imports the test's file. If a program needs its own environment variables,
a new `plimsoll run --simulate` runs it instead of a fork.
"""

from __future__ import annotations

import atexit
import inspect
import json
import os
import re
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec

from plimsoll.torch.simulated.start import running
from tests.apart import ROOT, command_of

if TYPE_CHECKING:
    from plimsoll.torch.simulated.simulation import Simulation

PROGRAMS = ROOT / "tests" / "programs"
GPU = "A100-80GB"
Program = Path | str | Callable[..., None]
_Parameters = ParamSpec("_Parameters")
_MOST_SIMULATORS = 4
"""How many `_Simulator` processes may run at a time; each holds PyTorch in memory."""
_MOST_SECONDS = 600
"""Time limit of a program, and of importing PyTorch, in seconds."""


def on_simulated_gpus(
    *options: str, gpu: str = GPU
) -> Callable[[Callable[_Parameters, None]], Callable[_Parameters, None]]:
    """Returns a decorator that runs a test on simulated GPUs.

    The test runs in a new process whose current folder is empty.
    """

    def decorate(test: Callable[_Parameters, None]) -> Callable[_Parameters, None]:
        @wraps(test)
        def run(*arguments: _Parameters.args, **named: _Parameters.kwargs) -> None:
            given = inspect.signature(test).bind(*arguments, **named).args
            output_of(test, *options, arguments=given, gpu=gpu)

        return run

    return decorate


def output_of(
    program: Program,
    *options: str,
    arguments: Sequence[object] = (),
    gpu: str = GPU,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Returns the output of a program that must end with status 0; see `simulate`."""
    done = simulate(
        program, *options, arguments=arguments, gpu=gpu, folder=folder, environment=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def simulate(
    program: Program,
    *options: str,
    arguments: Sequence[object] = (),
    gpu: str = GPU,
    folder: Path | None = None,
    stdin: str = "",
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end, with the options of `plimsoll run --simulate`.

    The program runs in `folder`, or in a temporary folder. If the program is given as text, it is
    first written to `script.py` in that folder. A function's arguments must be valid JSON. If
    `environment` is given, even an empty one, the program runs in a new `plimsoll run --simulate`
    instead of a fork. A fork would get these variables too late, because plimsoll and PyTorch read
    them when they start.
    """
    with tempfile.TemporaryDirectory() if folder is None else nullcontext(folder) as place:
        folder = Path(place)
        command = _command(program, arguments, folder)
        if environment is None:
            return _simulator(gpu, options).run(command, stdin, folder)
        return subprocess.run(
            [sys.executable, "-m", "plimsoll", "run", "--simulate", gpu, *options, *command],
            capture_output=True,
            text=True,
            check=False,
            input=stdin,
            cwd=folder,
            env={**os.environ, **environment},
            timeout=_MOST_SECONDS,
        )


def running_simulation() -> Simulation:
    """Returns the simulation of this process, which must have one."""
    simulation = running()
    assert simulation is not None
    return simulation


def assumptions() -> dict[str, str]:
    """Returns the simulation's assumption about each operation."""
    library = running_simulation().library
    return {library.name(a.operation): library.name(a.what) for a in library.assumptions()}


def summaries(output: str) -> list[tuple[int, int]]:
    """Returns allocated and reserved MiB from every printed memory_summary()."""
    scale = {"B": 0, "KiB": 1 / 1024, "MiB": 1, "GiB": 1024}
    rows = re.findall(r"\| (Allocated memory|GPU reserved memory) +\| +(\d+) (\w+)", output)
    values = [round(int(value) * scale[unit]) for _, value, unit in rows]
    return list(zip(values[::2], values[1::2], strict=True))


def _command(program: Program, arguments: Sequence[object], folder: Path) -> list[str]:
    """Returns the script to run, and its arguments."""
    if isinstance(program, str):
        path = folder / "script.py"
        path.write_text(program)
        return [str(path), *map(str, arguments)]
    if isinstance(program, Path):
        return [str(program), *map(str, arguments)]
    return command_of(program, arguments)


class _Simulator:
    """A process that has imported PyTorch on simulated GPUs, and forks for each program."""

    def __init__(self, gpu: str, options: tuple[str, ...]) -> None:
        command = [sys.executable, "-m", "plimsoll", "run", "--simulate", gpu, *options]
        self._process = subprocess.Popen(
            [*command, str(ROOT / "tests" / "forking.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
            env=os.environ | {"PYTHONIOENCODING": "utf-8"},
        )  # fmt: skip

    def run(self, command: list[str], stdin: str, folder: Path) -> subprocess.CompletedProcess[str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.TemporaryDirectory() as place:
            files = [Path(place) / name for name in ("stdin", "stdout", "stderr")]
            files[0].write_text(stdin, encoding="utf-8")
            request = [command, str(folder.absolute()), *map(str, files)]
            print(json.dumps(request), file=self._process.stdin, flush=True)
            if not select.select([self._process.stdout], [], [], _MOST_SECONDS)[0]:
                self.close()
            answer = self._process.stdout.readline()
            assert answer, f"{command}: no simulated GPU, or over {_MOST_SECONDS} s"
            output, error = (file.read_text(encoding="utf-8") for file in files[1:])
        return subprocess.CompletedProcess(command, int(answer), output, error)

    @property
    def is_closed(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        self._process.kill()
        with self._process:  # leaving the block closes the process's pipes
            pass


_simulators: dict[tuple[str, tuple[str, ...]], _Simulator] = {}


def _simulator(gpu: str, options: tuple[str, ...]) -> _Simulator:
    """Returns the process that simulates these GPUs, and starts it if necessary.

    Ends the least recently used process if there are too many. The processes write errors to the
    standard error of the tests.
    """
    simulator = _simulators.pop((gpu, options), None)
    if simulator is None or simulator.is_closed:
        simulator = _Simulator(gpu, options)
    _simulators[gpu, options] = simulator  # the most recently used one comes last
    while len(_simulators) > _MOST_SIMULATORS:
        _simulators.pop(next(iter(_simulators))).close()
    return simulator


@atexit.register
def _close_simulators() -> None:
    for simulator in _simulators.values():
        simulator.close()
