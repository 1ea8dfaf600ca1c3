"""Compares `native` with the allocators of the named versions of PyTorch."""

from __future__ import annotations

import argparse
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tests.oracle.builds import build
from tests.oracle.wheels import unpack

if TYPE_CHECKING:
    from pathlib import Path

_CHUNK = 2500


def main() -> int:
    """Runs the comparisons. Returns the exit status, 1 if a program showed a difference."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle", description=__doc__)
    parser.add_argument("versions", nargs="+", metavar="VERSION", help="such as 2.15.0")
    parser.add_argument("--programs", type=int, default=10_000, help="of each version")
    parser.add_argument("--operations", type=int, default=200, help="of each program")
    parser.add_argument("--first", type=int, default=1, metavar="SEED", help="of the first program")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    arguments = parser.parse_args()
    is_same = True
    for version in arguments.versions:
        unpack(version)
        program = build(version)
        last = arguments.first + arguments.programs
        with ThreadPoolExecutor(arguments.jobs) as pool:
            runs = [
                pool.submit(_run, program, seed, min(_CHUNK, last - seed), arguments.operations)
                for seed in range(arguments.first, last, _CHUNK)
            ]
            for run in runs:
                is_same &= run.result()
    return 0 if is_same else 1


def _run(program: Path, first: int, count: int, operations: int) -> bool:
    """Runs some programs, and prints the differences. Returns True if there is no difference."""
    command = [str(program), "random", str(first), str(count), str(operations)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    print(done.stdout + done.stderr, end="", flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
