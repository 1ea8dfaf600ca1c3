"""Scripts on simulated GPUs, for tests: as the command runs them, or quickly.

Importing PyTorch on simulated GPUs takes seconds. So a process that has done that once forks for
each script: it is a process of its own all the same.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import select
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
GPU = "A100-80GB"
_MOST_SIMULATORS = 4
"""That have PyTorch in memory at a time."""
_MOST_SECONDS = 600
"""For a script, and for importing PyTorch before the first one."""


def simulate(
    folder: Path, text: str, *options: str, gpu: str = GPU, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a script that has imported torch with the command `plimsoll run --simulate`."""
    script = str(_write(folder, text))
    return subprocess.run(
        [sys.executable, "-m", "plimsoll", "run", "--simulate", gpu, *options, script],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, **environment},
        timeout=600,
    )


def assert_runs(folder: Path, text: str, *options: str, gpu: str = GPU, **environment: str) -> str:
    """What a script prints that has imported torch, once it has ended well.

    With `environment` the command runs it, for PyTorch reads some of that when it is imported.
    """
    if environment:
        done = simulate(folder, text, *options, gpu=gpu, **environment)
    else:
        done = run_program(_write(folder, text), *options, gpu=gpu, folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_program(
    path: Path,
    *options: str,
    arguments: tuple[str, ...] = (),
    gpu: str = GPU,
    stdin: str = "",
    folder: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, in a folder; `options` are those of `plimsoll run --simulate`."""
    simulator = _simulators.pop((gpu, options), None)
    if simulator is None or simulator.is_closed:
        simulator = _Simulator(gpu, options)
    _simulators[gpu, options] = simulator  # the last one used is the last one of them
    while len(_simulators) > _MOST_SIMULATORS:
        _simulators.pop(next(iter(_simulators))).close()
    return simulator.run([str(path), *arguments], stdin, folder or Path.cwd())


def summaries(output: str) -> list[tuple[int, int]]:
    """Allocated and reserved MiB, now, by every memory_summary() printed."""
    scale = {"B": 0, "KiB": 1 / 1024, "MiB": 1, "GiB": 1024}
    rows = re.findall(r"\| (Allocated memory|GPU reserved memory) +\| +(\d+) (\w+)", output)
    values = [round(int(value) * scale[unit]) for _, value, unit in rows]
    return list(zip(values[::2], values[1::2], strict=True))


def _write(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text("import torch\n" + text)
    return path


class _Simulator:
    """A process that has imported PyTorch on simulated GPUs, and forks."""

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
        with self._process:  # closes its pipes
            pass


_simulators: dict[tuple[str, tuple[str, ...]], _Simulator] = {}


@atexit.register
def _close_simulators() -> None:
    for simulator in _simulators.values():
        simulator.close()
