"""Runs scripts, each in a process forked from this one, which has imported PyTorch.

Each line of stdin is in JSON. It has a script with its arguments, the folder in which the script
runs, and the files for the script's stdin, stdout and stderr. For each script, a line of stdout has
the exit status.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path

import pytest  # noqa: F401  with this and the next one in memory, scripts import neither
import torch  # noqa: F401

ROOT = Path(__file__).parents[1]
FLAGS = (os.O_RDONLY, os.O_WRONLY | os.O_CREAT, os.O_WRONLY | os.O_CREAT)


def run(command: list[str], folder: str, *files: str) -> None:
    """Runs the script in this process, which was forked for it."""
    for stream, (file, flags) in enumerate(zip(files, FLAGS, strict=True)):
        opened = os.open(file, flags, 0o600)
        os.dup2(opened, stream)
        os.close(opened)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    os.chdir(folder)
    sys.argv = command
    sys.path[:1] = [str(Path(command[0]).resolve().parent), str(ROOT)]
    runpy.run_path(command[0], run_name="__main__")


def main() -> None:
    """Runs scripts one after another, until stdin ends."""
    with os.fdopen(os.dup(1), "w") as answers, os.fdopen(os.dup(0)) as requests:
        while line := requests.readline():
            child = os.fork()
            if child == 0:
                run(*json.loads(line))
                return  # leaves `main`; the child then exits as Python does after any script
            _, status = os.waitpid(child, 0)
            print(os.waitstatus_to_exitcode(status), file=answers, flush=True)


if __name__ == "__main__":
    main()
