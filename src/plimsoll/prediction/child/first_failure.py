"""Finds out which rank of a job failed first, and why.

The order in which ranks exit does not show which failed first. After an error a rank destroys its
process groups before it exits. Other ranks that wait for this rank then get the error of a closed
connection, and may exit before it. So each rank writes down its error as soon as the error ends its
program.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.base.telemetry.job import launched_as
from plimsoll.prediction.child.missing_repository import missing_repository
from plimsoll.prediction.child.script_ending import reason_of

if TYPE_CHECKING:
    from collections.abc import Container
    from types import TracebackType

    from plimsoll.base.watchers import Watchers

_NOTES = "failed-"


@dataclass(frozen=True)
class Failure:
    """The end of a rank's program, with or without an error.

    Attributes:
        seconds: The time, on a clock that all processes of this machine share.
        rank: The rank in the job.
        reason: The reason, as in `ScriptError`; None if the rank ended without a Python traceback,
            for example by `sys.exit`.
        missing: The `HubRepository` that the rank failed to get, as a dictionary; None if the rank
            ended for any other reason.
    """

    seconds: float
    rank: int
    reason: str | None
    missing: dict[str, Any] | None = None


def note_failure(folder: str, watchers: Watchers) -> None:
    """Makes this process note the error that ends it, before Python prints the error.

    A process that ends without an error notes its end.

    Args:
        folder: The folder for the notes of all ranks of the job.
        watchers: Guards the code that takes the notes, so that its errors never reach the program.
    """
    rank, process, shows = launched_as("RANK"), os.getpid(), sys.excepthook
    if rank is None:
        return

    file = Path(folder) / f"{_NOTES}{process}"

    def write(error: BaseException | None) -> None:
        missing = missing_repository(error)
        values = None if missing is None else asdict(missing)
        failure = Failure(time.monotonic(), rank, reason_of(error), values)
        unfinished = Path(folder) / f".{process}"
        unfinished.write_text(json.dumps(asdict(failure)))
        unfinished.rename(file)

    note = watchers.guarded("the error that ends a rank", write)

    def note_end() -> None:
        if os.getpid() == process and not file.exists():
            note(None)

    def noting(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if os.getpid() == process:
            note(error)
        if missing_repository(error) is None:  # the parent reports which repository is missing
            shows(kind, error, trace)

    sys.excepthook = noting
    atexit.register(note_end)


def first_failure(folder: str | Path, of: Container[int] | None = None) -> Failure | None:
    """Returns the earliest failure that a rank wrote down; None if there is none.

    Args:
        folder: The folder of the notes.
        of: The ranks that may have failed. Each note of these ranks counts as a failure, even a
            note without a `reason`. If `of` is None, each rank's note counts if it has a `reason`.
    """
    notes = (json.loads(note.read_text()) for note in Path(folder).glob(f"{_NOTES}*"))
    failures = [Failure(**note) for note in notes]
    return min(
        (each for each in failures if (each.reason is not None if of is None else each.rank in of)),
        key=lambda failure: failure.seconds,
        default=None,
    )
