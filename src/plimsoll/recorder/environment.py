"""PLIMSOLL_RECORD: a recording of a whole program, which need not know of it."""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing.util import Finalize
from pathlib import Path

from plimsoll.errors import InputError
from plimsoll.recorder.recorder import Recorder
from plimsoll.text import printable

_FILE = "PLIMSOLL_RECORD"
_IS_CHILD = "PLIMSOLL_RECORD_IS_CHILD"


def record_from_environment() -> None:
    """Record from now on to the end of the process, if PLIMSOLL_RECORD names a file.

    A process that a launcher gave a rank writes `run.rank0.plim` for `run.plim`, and one that was
    started by a process that records, or by `multiprocessing`, `run.PROCESS.plim`. The process
    ends if the recording cannot begin.
    """
    name = os.environ.get(_FILE)
    if not name:
        return
    try:
        recorder = Recorder(_own_path(Path(name)))
        recorder.__enter__()
    except InputError as error:
        print(f"plimsoll: {error}", file=sys.stderr)
        sys.exit(2)
    os.environ[_IS_CHILD] = "1"  # for those that this process starts
    Finalize(None, _end, (recorder,), exitpriority=3)


def _end(recorder: Recorder) -> None:
    recorder.stop()
    if recorder.event_count > 0:
        print(printable(f"next: plimsoll explain {recorder.path}"), file=sys.stderr)


def _own_path(path: Path) -> Path:
    suffix = path.suffix or ".plim"
    rank = os.environ.get("RANK", "")
    if rank.isdecimal():
        return path.with_name(f"{path.stem}.rank{rank}{suffix}")
    if os.environ.get(_IS_CHILD) or multiprocessing.parent_process() is not None:
        return path.with_name(f"{path.stem}.{os.getpid()}{suffix}")
    return path
