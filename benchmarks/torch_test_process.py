"""Runs PyTorch's tests in this process. Writes a line of JSON when a test begins or ends.

    python benchmarks/torch_test_process.py list FOLDER MODULE...
    python benchmarks/torch_test_process.py run FOLDER RESULTS SECONDS NAME...

The tests' modules are in FOLDER, and the packages that they import in FOLDER/site. A name is
MODULE.CLASS.TEST. A test that takes longer than SECONDS ends the process.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import sys
import time
import traceback
import unittest
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

Problem = (
    tuple[type[BaseException], BaseException, TracebackType]
    | tuple[None, None, None]  # unittest's types allow None, too
)


def installed_allocator() -> str:
    """Returns the name of plimsoll's allocator, or "torch" if this process uses PyTorch's."""
    module: Any = sys.modules.get("plimsoll.torch.live.live_engines")
    installed = None if module is None else module._installed
    return "torch" if installed is None else str(installed.choice.allocator)


def where(folder: Path, problem: Problem) -> str:
    """Returns an error's place (the innermost frame in the tests' own files), type and message."""
    kind, error, trace = problem
    frames = traceback.extract_tb(trace)
    own = [frame for frame in frames if Path(frame.filename).parent == folder]
    place = f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "elsewhere"
    says = " ".join(line.strip() for line in str(error).strip().splitlines() if line.strip())
    return f"{place}: {kind.__name__ if kind else 'error'}: {says[:400]}"


class Outcome(unittest.TestResult):
    """The result of one test: passed, skipped or failed, and why."""

    def __init__(self, folder: Path) -> None:
        """Starts with "passed" as the outcome of a test."""
        super().__init__()
        self.folder = folder
        self.outcome = "passed"
        self.why = ""

    def _fail(self, problem: Problem) -> None:
        if self.outcome != "failed":
            self.outcome, self.why = "failed", where(self.folder, problem)

    def addError(self, test: unittest.TestCase, err: Problem) -> None:  # noqa: N802
        """Notes an error in the test or its setup."""
        super().addError(test, err)
        self._fail(err)

    def addFailure(self, test: unittest.TestCase, err: Problem) -> None:  # noqa: N802
        """Notes a failed assertion."""
        super().addFailure(test, err)
        self._fail(err)

    def addSubTest(  # noqa: N802
        self, test: unittest.TestCase, subtest: unittest.TestCase, err: Problem | None
    ) -> None:
        """Notes a failed subtest."""
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._fail(err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        """Notes that this machine or this PyTorch skips the test."""
        super().addSkip(test, reason)
        if self.outcome == "passed":
            self.outcome, self.why = "skipped", reason

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        """Notes that a test passed although it is marked to fail."""
        super().addUnexpectedSuccess(test)
        self.outcome, self.why = "failed", "it passes, and should fail"


def load(name: str) -> dict[str, unittest.TestCase]:
    """Returns a module's tests by their names. Does not call PyTorch's `load_tests`."""
    module = importlib.import_module(name)
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, unittest.TestCase)
        and value.__module__ == name
    ]
    tests = (test for each in classes for test in _tests_of(each))
    return {test.id(): test for test in tests}


def _tests_of(case: type[unittest.TestCase]) -> Iterator[unittest.TestCase]:
    for test in unittest.defaultTestLoader.loadTestsFromTestCase(case):
        assert isinstance(test, unittest.TestCase)
        yield test


def run(folder: Path, results: Path, seconds: float, names: list[str]) -> None:
    """Runs the named tests."""
    importlib.import_module("torch")
    wanted = os.environ["PLIMSOLL_ALLOCATOR"]
    if installed_allocator() != wanted:
        raise SystemExit(f"the allocator in place is {installed_allocator()}, not {wanted}")
    viewer: Any = importlib.import_module("torch.cuda._memory_viz")
    # PyTorch's `format_flamegraph` downloads a program, which it must not do here. This line
    # replaces the function's code, because a new function would not reach modules that have
    # imported the old one.
    viewer.format_flamegraph.__code__ = (lambda lines, _script=None: lines).__code__
    known: dict[str, unittest.TestCase] = {}
    for module in dict.fromkeys(name.split(".")[0] for name in names):
        known |= load(module)
    with results.open("a") as file:

        def tell(**row: Any) -> None:
            file.write(json.dumps(row) + "\n")
            file.flush()

        for name in names:
            tell(begins=name)
            outcome = Outcome(folder)
            started = time.monotonic()
            faulthandler.dump_traceback_later(seconds, exit=True)
            unittest.TestSuite([known[name]]).run(outcome)
            faulthandler.cancel_dump_traceback_later()
            tell(
                name=name,
                outcome=outcome.outcome,
                why=outcome.why,
                seconds=round(time.monotonic() - started, 3),
            )
    sys.stdout.flush()
    os._exit(0)  # ends without waiting for threads that a test left running


def main(verb: str, folder: Path, rest: list[str]) -> None:
    """Lists tests or runs some."""
    sys.argv = [str(folder / "tests.py")]  # PyTorch's test helpers read sys.argv
    os.environ["PYTORCH_PRINT_REPRO_ON_FAILURE"] = "0"
    sys.path[:0] = [str(folder), str(folder / "site")]
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(folder), str(folder / "site"), os.environ.get("PYTHONPATH", "")]
    ).rstrip(os.pathsep)
    if verb == "list":
        found = {name: None for module in rest for name in load(module)}
        print(json.dumps(list(found)))
    else:
        run(folder, Path(rest[0]), float(rest[1]), rest[2:])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).resolve(), sys.argv[3:])
