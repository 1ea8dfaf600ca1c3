"""Runs PyTorch's own tests of CUDA's memory on a GPU under each allocator.

    python benchmarks/torch_tests.py FOLDER

FOLDER holds PyTorch's test_cuda.py, test_cuda_multigpu.py, test_cuda_trace.py and
test_cuda_primary_ctx.py. Its file VERSION names the version of these tests, and its folder site has
the packages that they import. All of these files belong to PyTorch, not to this project.

Each test runs under PyTorch's allocator and each of plimsoll's. Tests run in batches, several
processes at a time. Failed tests run again, each in a process of its own. If a test passes under
PyTorch's allocator but still fails under one of plimsoll's, it runs once more, alone on the card.
If it fails again, it also runs alone on the card under PyTorch's allocator, because some tests pass
only after earlier tests have filled the cache. If a test ran several times under an allocator, the
table has the outcome of the last run. Results go to benchmarks/results/torch_tests.txt.

The exit status is 1 if a test did not run, or if a test failed under one of plimsoll's allocators
but not under PyTorch's. Tests that assert the sizes of PyTorch's segments may fail.
"""

from __future__ import annotations

import argparse
import collections
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from report import RESULTS, heading, save

MODULES = ("test_cuda", "test_cuda_multigpu", "test_cuda_trace", "test_cuda_primary_ctx")
ALLOCATORS = ("torch", "native", "elastic")
CHILD = Path(__file__).with_name("torch_test_process.py")
BATCH = 12
TEST_SECONDS = 60
FORGOTTEN = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING")
# Tests that assert the sizes of PyTorch's segments. `elastic` has segments of other sizes.
ASSERT_SEGMENTS = {
    "test_graph_memory_stats_and_use_result_after_destroy_graph": (
        "expects segments of 2 and 20 MiB to be reserved"
    ),
}


@dataclass(frozen=True)
class Outcome:
    """How a test ended."""

    outcome: str  # passed, skipped, failed or not run
    why: str = ""


Table = dict[str, dict[str, Outcome]]  # outcomes by allocator, then by test


@dataclass
class Runner:
    """Runs test processes until the time is up."""

    folder: Path
    test_seconds: float
    ends: float  # the deadline, by time.monotonic()
    results: Table = field(default_factory=lambda: {name: {} for name in ALLOCATORS})
    again: Table = field(default_factory=lambda: {name: {} for name in ALLOCATORS})

    def left(self) -> float:
        """Returns the seconds left."""
        return self.ends - time.monotonic()

    def start(self, allocator: str, arguments: Sequence[str], log: Path) -> int | None:
        """Runs a process to its end, and returns its exit status; None if time ran out."""
        kept = {name: value for name, value in os.environ.items() if name not in FORGOTTEN}
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, str(CHILD), *arguments],
                cwd=self.folder,
                env={**kept, "PLIMSOLL_ALLOCATOR": allocator, "PYTHONFAULTHANDLER": "1"},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            status = None
            with suppress(subprocess.TimeoutExpired):
                status = process.wait(max(self.left(), 1))
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # kills the process and all that it started
            process.wait()
        return status

    def list_tests(self) -> list[str]:
        """Returns the names of all tests."""
        with tempfile.TemporaryDirectory() as scratch:
            log = Path(scratch) / "log.txt"
            if self.start("torch", ["list", str(self.folder), *MODULES], log) != 0:
                raise SystemExit(f"the tests cannot be listed:\n{log.read_text()[-3000:]}")
            lines = [line for line in log.read_text().splitlines() if line.startswith("[")]
            names: list[str] = json.loads(lines[-1])
        return names

    def run(self, allocator: str, names: Sequence[str]) -> None:
        """Runs tests in one process. If a test ends the process, runs the rest in a new one."""
        found = self.results[allocator]
        remaining = list(names)
        with tempfile.TemporaryDirectory() as scratch:
            log, results = Path(scratch) / "log.txt", Path(scratch) / "results.jsonl"
            while remaining and self.left() > 0:
                results.write_text("")
                arguments = ["run", str(self.folder), str(results), str(self.test_seconds)]
                status = self.start(allocator, [*arguments, *remaining], log)
                rows = [json.loads(line) for line in results.read_text().splitlines()]
                begun = [row["begins"] for row in rows if "begins" in row]
                for row in rows:
                    if "name" in row:
                        found[row["name"]] = Outcome(row["outcome"], row["why"])
                ended = {row["name"] for row in rows if "name" in row}
                remaining = [name for name in remaining if name not in ended]
                if status is None or not remaining:
                    break
                output = log.read_text(errors="replace")
                is_late = "Timeout (" in output
                why = (
                    f"no end after {self.test_seconds:g} s" if is_late else f"exit status {status}"
                )
                if not begun:
                    last = output.strip().splitlines()[-1:] or [""]
                    why = f"its process did not start: {why}: {last[0][:300]}"
                    found.update(dict.fromkeys(remaining, Outcome("failed", why)))
                    break
                found[begun[-1]] = Outcome("failed", why)
                remaining = [name for name in remaining if name != begun[-1]]
        for name in remaining:
            found.setdefault(name, Outcome("not run"))

    def run_all(self, units: Iterable[tuple[str, Sequence[str]]], jobs: int) -> None:
        """Runs units (an allocator and some tests), up to `jobs` processes at a time."""
        with ThreadPoolExecutor(jobs) as workers:
            for done in [workers.submit(self.run, *unit) for unit in units]:
                done.result()

    def failing(self, allocator: str) -> list[str]:
        """Returns the tests that fail under the allocator.

        For plimsoll's allocators, leaves out the tests that do not pass under PyTorch's allocator.
        """
        return [
            name
            for name, outcome in self.results[allocator].items()
            if outcome.outcome == "failed"
            and (allocator == "torch" or self.results["torch"][name].outcome == "passed")
        ]

    def repeat(self, allocators: Iterable[str], jobs: int) -> None:
        """Runs each failing test again, in a process of its own."""
        units = [(allocator, name) for allocator in allocators for name in self.failing(allocator)]
        before = {unit: self.results[unit[0]][unit[1]] for unit in units}
        self.run_all(((allocator, [name]) for allocator, name in units), jobs)
        for (allocator, name), outcome in before.items():
            if self.results[allocator][name].outcome != "failed":
                self.again[allocator][name] = outcome


def batches(names: Sequence[str], size: int) -> list[list[str]]:
    """Splits tests into groups of at most `size`, and spreads neighbours over the groups."""
    count = -(-len(names) // size)
    return [list(names[first::count]) for first in range(count)]


def explanation(allocator: str, name: str) -> str:
    """Returns why a test cannot pass under an allocator, or "" if it should pass."""
    return ASSERT_SEGMENTS.get(name.rpartition(".")[2], "") if allocator == "elastic" else ""


def differing(results: Table) -> dict[tuple[str, str], Outcome]:
    """Returns tests that pass under PyTorch's allocator but not under one of plimsoll's."""
    return {
        (allocator, name): outcome
        for allocator in ALLOCATORS[1:]
        for name, outcome in results[allocator].items()
        if outcome.outcome != "passed" and results["torch"][name].outcome == "passed"
    }


def table(results: Table, again: Table) -> str:
    """Returns the table of the results."""

    def count(allocator: str, wanted: str, module: str = "") -> int:
        return sum(
            outcome.outcome == wanted and name.startswith(module)
            for name, outcome in results[allocator].items()
        )

    def fail_anyway(allocator: str) -> int:
        return sum(
            "failed" == outcome.outcome == results["torch"][name].outcome
            for name, outcome in results[allocator].items()
        )

    rows = {
        f"{module}.py, passed": [count(a, "passed", f"{module}.") for a in ALLOCATORS]
        for module in MODULES
    }
    for wanted in ("passed", "skipped", "failed", "not run"):
        rows[wanted] = [count(allocator, wanted) for allocator in ALLOCATORS]
    rows["of the failed, under PyTorch's too"] = [fail_anyway(a) for a in ALLOCATORS]
    rows["of the passed, not with others beside them"] = [len(again[a]) for a in ALLOCATORS]
    lines = [f"{'':44}{'PyTorch':>9}{'native':>9}{'elastic':>9}"]
    lines += [f"{title:44}" + "".join(f"{n:9d}" for n in row) for title, row in rows.items()]

    found = differing(results)
    lines += ["", "What passes under PyTorch's allocator and not under plimsoll's:"]
    for (allocator, name), outcome in found.items():
        lines += [f"  {allocator}: {name}", f"    {outcome.why or outcome.outcome}"]
        if reason := explanation(allocator, name):
            lines.append(f"    it {reason}")
    if not found:
        lines.append("  none")
    reasons = collections.Counter(
        kind_of(outcome.why) for outcome in results["torch"].values() if outcome.outcome == "failed"
    )
    lines += ["", "Why tests fail under PyTorch's own allocator:"]
    lines += [f"  {n:3d}  {reason}" for reason, n in reasons.most_common()] or ["  none does"]
    return "\n".join(lines) + "\n"


def kind_of(why: str) -> str:
    """Returns the type of an error, without its place and message."""
    place, _, rest = why.partition(": ")
    return rest.partition(": ")[0] or place


def arguments() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="PyTorch's tests")
    parser.add_argument("--jobs", type=int, default=14, help="processes at a time (default 14)")
    parser.add_argument("--test-seconds", type=float, default=TEST_SECONDS, help="for one test")
    parser.add_argument("--seconds", type=float, default=345, help="for all of it")
    parser.add_argument("--only", default="", help="tests whose names contain this")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the table is kept")
    parser.add_argument("--json", type=Path, help="write every outcome")
    options = parser.parse_args()
    files = [*(f"{module}.py" for module in MODULES), "VERSION", "site"]
    if missing := [name for name in files if not (options.folder / name).exists()]:
        parser.error(f"{options.folder} lacks {', '.join(missing)}")
    return options


def main() -> int:
    """Runs the tests, and prints and saves the table."""
    options = arguments()
    folder = options.folder.resolve()
    started = time.monotonic()
    runner = Runner(folder, options.test_seconds, started + options.seconds)

    def report(text: str) -> None:
        print(f"{time.monotonic() - started:4.0f} s  {text}", file=sys.stderr, flush=True)

    names = [name for name in runner.list_tests() if options.only in name]
    report(f"{len(names)} tests")
    if not names:
        raise SystemExit(f"no test's name contains {options.only!r}")
    groups = batches(names, BATCH)
    # At first only one group runs under plimsoll. Its process compiles plimsoll's bridge to
    # PyTorch, unless the cache has it. Later processes load the bridge from the cache.
    first = [("native", groups[0]), *(("torch", group) for group in groups)]
    runner.run_all(first, options.jobs)
    report("all ran under PyTorch's allocator")
    rest = [*(("elastic", group) for group in groups), *(("native", each) for each in groups[1:])]
    runner.run_all(rest, options.jobs)
    report("all ran once")
    runner.repeat(["torch"], options.jobs)
    report("what fails under PyTorch's allocator ran alone")
    runner.repeat(ALLOCATORS[1:], options.jobs)
    report("what fails under plimsoll's ran alone")
    runner.repeat(ALLOCATORS[1:], 1)
    report("and with the card for itself")
    left = {name for allocator in ALLOCATORS[1:] for name in runner.failing(allocator)}
    runner.run_all((("torch", [name]) for name in sorted(left)), 1)
    report("and under PyTorch's likewise")

    version = (folder / "VERSION").read_text().strip()
    text = (
        f"{heading()}\n{len(names)} tests of PyTorch {version}, under PyTorch "
        f"{importlib.metadata.version('torch')}, in {time.monotonic() - started:.0f} s\n\n"
        + table(runner.results, runner.again)
    )
    print(text)
    save("torch_tests", text, options.results)
    if options.json is not None:
        outcomes = {
            allocator: {name: [o.outcome, o.why] for name, o in found.items()}
            for allocator, found in runner.results.items()
        }
        options.json.write_text(json.dumps(outcomes, indent=1) + "\n")
    unexplained = [unit for unit in differing(runner.results) if not explanation(*unit)]
    has_missing = any(
        outcome.outcome == "not run"
        for found in runner.results.values()
        for outcome in found.values()
    )
    return 1 if unexplained or has_missing else 0


if __name__ == "__main__":
    sys.exit(main())
