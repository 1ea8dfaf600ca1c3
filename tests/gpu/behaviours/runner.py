"""Starts the behaviours' processes and collects their observations."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.gpu.behaviours.behaviour import Behaviour

ALLOCATORS = ("torch", "native", "elastic")
ROOT = Path(__file__).parents[3]
TIMEOUT_SECONDS = 300
ALONE = "card"  # behaviours of this group measure the whole card, so they run alone
FORGOTTEN = (
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "PLIMSOLL_REPORT",
    "TORCH_DEVICE_BACKEND_AUTOLOAD",
)

Result = dict[str, Any]  # one key: `observed`, `skipped` (why) or `failed` (how)
Results = dict[str, dict[str, Result]]  # by behaviour name, then by allocator
Report = Callable[[str], None]


def _environment(allocator: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in FORGOTTEN}
    return {
        **kept,
        "PLIMSOLL_ALLOCATOR": allocator,
        "TORCH_SYMBOLIZE_MODE": "dladdr",
        "PYTHONFAULTHANDLER": "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }


def _run_process(
    allocator: str, names: Sequence[str], folder: Path
) -> tuple[list[Result], bool, str]:
    """Runs programs in one process.

    Returns the results, whether the process started, and a text that says how the process ended.
    """
    results, log = folder / "results.jsonl", folder / "log.txt"
    results.write_text("")
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.behaviours.child", str(results), *names],
            cwd=ROOT,
            env=_environment(allocator),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            end = f"exit status {process.wait(TIMEOUT_SECONDS)}"
        except subprocess.TimeoutExpired:
            end = f"no end after {TIMEOUT_SECONDS} s"
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # kills the process and all that it started
        process.wait()
    lines = results.read_text().splitlines()
    rows = [json.loads(line) for line in lines[1:]]
    return rows, bool(lines), f"{end}\n{log.read_text(errors='replace')[-4000:]}"


def _run_unit(allocator: str, names: Sequence[str]) -> dict[str, Result]:
    """Runs programs in one process. If a program ends the process, a new one runs the rest."""
    found: dict[str, Result] = {}
    remaining = list(names)
    with tempfile.TemporaryDirectory() as folder:
        while remaining:
            rows, is_started, end = _run_process(allocator, remaining, Path(folder))
            found |= {row.pop("name"): row for row in rows}
            remaining = remaining[len(rows) :]
            if not is_started:
                why = f"its process did not start: {end}"
                return found | {name: {"failed": why} for name in remaining}
            if remaining:
                found[remaining.pop(0)] = {"failed": f"its process ended: {end}"}
            elif not end.startswith("exit status 0\n"):
                last = names[-1]
                found[last] = {"failed": f"all was done, and then its process ended: {end}"}
    return found


def _units(behaviours: Iterable[Behaviour]) -> Iterator[list[str]]:
    groups: dict[str, list[str]] = {}
    for behaviour in behaviours:
        key = behaviour.name if behaviour.own_process else behaviour.group
        groups.setdefault(key, []).append(behaviour.name)
    yield from groups.values()


def run(
    behaviours: Sequence[Behaviour],
    allocators: Sequence[str] = ALLOCATORS,
    jobs: int = 6,
    report: Report = lambda _line: None,
) -> Results:
    """Runs behaviours under allocators, up to `jobs` processes at a time."""
    results: Results = {behaviour.name: {} for behaviour in behaviours}

    def run_one(unit: tuple[str, list[str]]) -> None:
        allocator, names = unit
        for name, result in _run_unit(allocator, names).items():
            results[name][allocator] = result
        report(f"{allocator}: {names[0]}" + (f" and {len(names) - 1} more" * (len(names) > 1)))

    alone = [behaviour for behaviour in behaviours if behaviour.group == ALONE]
    together = [behaviour for behaviour in behaviours if behaviour.group != ALONE]
    for chosen, workers in ((alone, 1), (together, jobs)):
        units = [(allocator, names) for names in _units(chosen) for allocator in allocators]
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(run_one, units))
    return results


def complaint(behaviour: Behaviour, allocator: str, results: dict[str, Result]) -> str:
    """Returns the reason why a behaviour fails under an allocator; empty if it passes.

    It passes if its observations satisfy their relations to those under PyTorch's allocator, or if
    both runs skip it for the same reason.
    """
    theirs, ours = results["torch"], results[allocator]
    for name, result in (("torch", theirs), (allocator, ours)):
        if "failed" in result:
            return f"it fails under {name}: {result['failed']}"
    if "skipped" in theirs or "skipped" in ours:
        return "" if theirs == ours else f"torch: {theirs}\n{allocator}: {ours}"
    expected, observed = theirs["observed"], ours["observed"]
    lines = []
    for name in behaviour.differences(allocator, expected, observed):
        parts = _parts_that_differ(expected.get(name), observed.get(name))
        lines += [name, f"  torch: {parts[0]}", f"  {allocator}: {parts[1]}"]
    return "\n".join(lines)


def _parts_that_differ(theirs: Any, ours: Any) -> tuple[Any, Any]:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return (
            {key: value for key, value in theirs.items() if key not in ours or ours[key] != value},
            {
                key: value
                for key, value in ours.items()
                if key not in theirs or theirs[key] != value
            },
        )
    return theirs, ours
