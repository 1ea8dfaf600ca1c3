"""Which rank of a job failed first, and why: each notes its error at the moment that it ends it.

The order of exits says little. A rank that raised an error still takes down its process groups, and
those that wait for it may be gone before, with a closed connection for an error.
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
    """An error that ended the program of a rank, or the end of a rank without one.

    Attributes:
        seconds: When, on the clock of this machine that all processes share.
        rank: In the job.
        reason: As `ScriptError` has it; None if the rank ended without an error that Python showed,
            for example by `sys.exit`.
        missing: The `HubRepository` that the rank failed to get, as a dictionary; None if it failed
            otherwise.
    """

    seconds: float
    rank: int
    reason: str | None
    missing: dict[str, Any] | None = None


def note_failure(folder: str, watchers: Watchers) -> None:
    """Have this process's rank note an error that ends it, before Python shows it; else its end.

    Args:
        folder: The folder in which all ranks of the job note their failures.
        watchers: Which guard the note.
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
        if missing_repository(error) is None:  # the process that asked says which one is missing
            shows(kind, error, trace)

    sys.excepthook = noting
    atexit.register(note_end)


def first_failure(folder: str | Path, of: Container[int] | None = None) -> Failure | None:
    """The first failure that was noted; None where there is none.

    Args:
        folder: The folder of the notes.
        of: The ranks that may have failed, of which an end without an error counts too; None for
            the errors of all ranks.
    """
    notes = (json.loads(note.read_text()) for note in Path(folder).glob(f"{_NOTES}*"))
    failures = [Failure(**note) for note in notes]
    return min(
        (each for each in failures if (each.reason is not None if of is None else each.rank in of)),
        key=lambda failure: failure.seconds,
        default=None,
    )
