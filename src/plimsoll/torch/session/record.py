"""Records the GPU memory of a running program into a file, event by event.

`plimsoll.record("run.plim")` records PyTorch's allocator, plimsoll's, or a simulated GPU's.
PLIMSOLL_RECORD records a whole program without changes to it. The file can be opened at any moment,
even after the program was killed.
"""

from __future__ import annotations

import multiprocessing
import os
import shlex
import sys
from itertools import chain, count
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.base.errors import InputError
from plimsoll.base.printable import printable
from plimsoll.base.systems import require_linux
from plimsoll.base.telemetry.job import rank_of_process
from plimsoll.engine.recorder.allocator_events import AllocatorEvents
from plimsoll.engine.recorder.parts import earlier_path
from plimsoll.engine.recorder.recorder import Recorder
from plimsoll.torch.building.versions import is_cuda_build
from plimsoll.torch.live.torch_events import TorchEvents
from plimsoll.torch.simulated.simulated_events import SimulatedEvents
from plimsoll.torch.simulated.start import running

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll.engine.recorder.event_source import EventSource
    from plimsoll.engine.simulator.allocator import Allocator

_FILE = "PLIMSOLL_RECORD"
_LIMIT = "PLIMSOLL_RECORD_LIMIT"
_OF_PARENT = "PLIMSOLL_RECORD_OF_PARENT"


def record(
    path: str | os.PathLike[str],
    *,
    stacks: bool = True,
    allocator: Allocator | None = None,
    limit: int | str | None = None,
) -> Recorder:
    """Records the events of GPU memory into a file, inside a `with` block or a function.

    >>> import plimsoll
    >>> with plimsoll.record("run.plim") as recording:  # doctest: +SKIP
    ...     train()
    ...     recording.mark("evaluation")
    ...     evaluate()

    It records all GPUs of the process and all threads. The end of each optimizer's `step()` is
    marked "step". The recording's own memory does not grow; only the file grows, up to `limit`. If
    the program dies, the file lacks at most the last tenth of a second. `plimsoll explain` and
    `plimsoll view` read the file.

    As a decorator it records each call of the function: the first into `run.plim`, the next into
    `run-2.plim`, `run-3.plim` and so on. A recursive call belongs to the recording of the outer
    call.

    Args:
        path: The file to write, a `.plim` that does not exist yet.
        stacks: Whether to record the Python call stack of each request.
        allocator: The `plimsoll.Allocator` to record instead of the process's GPUs.
        limit: The most that the recording takes on the disk, such as "1GiB"; at least 16 MiB. The
            newest events are in `run.plim`, and the events before these are in `run.earlier.plim`.
            Even older events are dropped. Each of the two files can be opened alone, and says how
            much it lacks.

    Returns:
        A context manager, which is also a decorator.

    Raises:
        InputError: If the file's name has the ending of another format, or the limit is not valid.
    """
    return Recorder(path, events_of(allocator), stacks=stacks, limit=limit)


def events_of(allocator: Allocator | None) -> Callable[[], EventSource]:
    """Returns a function that returns the events of `allocator`.

    If `allocator` is None, the function returns the events of this process's GPUs.
    """
    return events_of_process if allocator is None else lambda: AllocatorEvents(allocator)


def events_of_process() -> EventSource:
    """Returns the events of this process's GPUs.

    Raises:
        InputError: If the process has no GPU.
    """
    simulation = running()
    if simulation is not None:
        return SimulatedEvents(simulation)
    require_linux("plimsoll.record")
    if not is_cuda_build():
        raise InputError(
            "there is nothing to record: the installed PyTorch has no CUDA; "
            "`plimsoll run --simulate H100 --record FILE` needs none"
        )
    import torch

    if torch.cuda.device_count() == 0:
        raise InputError(
            "there is nothing to record: no NVIDIA GPU; "
            "`plimsoll run --simulate H100 --record FILE` needs none"
        )
    return TorchEvents(torch)


def record_from_environment() -> None:
    """Records from now to the end of the process, if PLIMSOLL_RECORD names a file.

    If that file is `run.plim`, a process that has a rank from a launcher writes `run.rank0.plim`. A
    process that was started by a recording process or by `multiprocessing` writes
    `run.PROCESS.plim`. A rank that starts again writes `run.rank0-2.plim`. PLIMSOLL_RECORD_LIMIT is
    the `limit` of each process's recording. If the recording cannot begin, the process ends.
    """
    name = os.environ.get(_FILE)
    if not name:
        return
    try:
        path = own_path(Path(name))
        if rank_of_process() is not None:
            path = _free(path)  # a launcher starts a rank again after a failure
        recorder = Recorder(path, events_of(None), limit=os.environ.get(_LIMIT) or None)
        recorder.__enter__()
    except InputError as error:
        print(f"plimsoll: {error}", file=sys.stderr)
        sys.exit(2)
    os.environ[_OF_PARENT] = str(recorder.path)  # for processes that this one starts
    Finalize(None, _end, (recorder,), exitpriority=3)


def _free(path: Path) -> Path:
    """Returns the first of `run.plim`, `run-2.plim`, `run-3.plim`, ... that does not exist.

    A name is also taken if only the earlier part of its recording exists.
    """
    names = (path.with_stem(f"{path.stem}-{number}") for number in count(2))
    return next(each for each in chain([path], names) if not _is_taken(each))


def _is_taken(path: Path) -> bool:
    return os.path.lexists(path) or os.path.lexists(earlier_path(path))


def _end(recorder: Recorder) -> None:
    recorder.stop()
    if recorder.event_count > 0:
        command = shlex.join(["plimsoll", "explain", str(recorder.path)])
        print(printable(f"next: {command}"), file=sys.stderr)


def rank_recorder(path: Path) -> Recorder | None:
    """Makes a recorder of this rank's GPUs.

    If `path` is `run.plim`, the recorder of rank 0 writes `run.rank0.plim`.

    Returns:
        The recorder, which has not begun. None if this process has no rank, or if the file exists
        already because another process of the same rank writes it.
    """
    if rank_of_process() is None:
        return None
    own = own_path(path)
    return None if own.exists() else record(own, stacks=False)


def own_path(path: Path) -> Path:
    """Returns the file that this process writes if its job is recorded into `path`.

    For `run.plim`, a process that has a rank from a launcher writes `run.rank0.plim`. A child of
    that process has the same rank, and writes `run.rank0.PROCESS.plim`.
    """
    suffix = path.suffix or ".plim"
    rank, of_parent = rank_of_process(), os.environ.get(_OF_PARENT)
    if rank is not None:
        path = path.with_name(f"{path.stem}.rank{rank}{suffix}")
        is_child = of_parent == str(path)
    else:
        is_child = bool(of_parent) or multiprocessing.parent_process() is not None
    return path.with_name(f"{path.stem}.{os.getpid()}{suffix}") if is_child else path
