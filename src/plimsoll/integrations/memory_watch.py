"""Defines `MemoryWatch`, which does the work of all integrations with trainers and trackers."""

from __future__ import annotations

import os
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from plimsoll.base.endings import check_new_recording
from plimsoll.base.errors import InputError
from plimsoll.base.units import format_size
from plimsoll.explanation.leak_watch import LeakWatch
from plimsoll.integrations.memory_figures import GpusInUse
from plimsoll.prediction.fitting.headroom import Headroom
from plimsoll.torch.session.record import own_path, record

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll.integrations.memory_figures import GpuMemory
    from plimsoll.recordings.analysis.leaks import Leak

    Log = Callable[[dict[str, float], int | None], None]


class WatchOptions(TypedDict, total=False):
    """The options of every integration; see `MemoryWatch`."""

    record: str | os.PathLike[str] | None
    leaks: bool
    headroom: int | str


class HeadroomWarning(UserWarning):
    """Warns that a run has nearly used up a card's memory; see `MemoryWatch`."""


class MemoryWatch:
    """Logs and records a run's GPU memory; warns of leaks and of low headroom.

    >>> from plimsoll.integrations.memory_watch import MemoryWatch
    >>> with MemoryWatch(record="run.plim") as memory:  # doctest: +SKIP
    ...     for step, batch in enumerate(batches):
    ...         train(batch)
    ...         print(step, memory.figures())

    Each integration with a trainer or tracker in docs/integrations.md uses a MemoryWatch. Without a
    real or simulated GPU, the watch has no figures and never warns. With `record`, it then raises
    an error when it begins.
    """

    def __init__(
        self,
        *,
        record: str | os.PathLike[str] | None = None,
        leaks: bool = True,
        headroom: int | str = "1%",
        log: Log | None = None,
    ) -> None:
        """Makes a watch.

        Args:
            record: A .plim file to record the run into, as by `plimsoll.record`; each rank of a job
                writes its own file, such as run.rank0.plim.
            leaks: Whether to watch the first 256 steps of optimizers for lines that keep more
                memory each step, and to warn of them (`plimsoll.LeakWatch`).
            headroom: The least memory that should stay free at the peak: a size such as "2GiB", a
                number of bytes, or a share of the card such as "5%". If less stays free, plimsoll
                warns once for each GPU; 0 never warns.
            log: A function to which the method `log` passes the figures and the step.

        Raises:
            InputError: If the headroom is not a size, or the file's name has the ending of another
                format.
        """
        if record is not None:
            check_new_recording(record)
        self._record = None if record is None else Path(record)
        self._finds_leaks = leaks
        self._headroom = Headroom.parse(headroom)
        self._log = log
        self._gpus = GpusInUse()
        self._warned: set[int] = set()
        self._leak_watch: LeakWatch | None = None
        self._opened = ExitStack()
        self.path: Path | None = None

    @property
    def leaks(self) -> list[Leak]:
        """Returns the leaks found so far; those that grow fastest come first."""
        return [] if self._leak_watch is None else self._leak_watch.leaks

    def __enter__(self) -> MemoryWatch:
        """Begins to watch.

        Raises:
            InputError: If the recording cannot begin: the file exists, another recording is
                running, or there is no GPU.
        """
        self.end()  # an earlier run may have failed without ending the watch
        self._warned.clear()
        with ExitStack() as stack:
            if self._record is not None:
                self._begin_recording(stack, own_path(self._record))
            elif self._finds_leaks:
                self._begin_leak_watch(stack)
            self._opened = stack.pop_all()
        return self

    def _begin_recording(self, stack: ExitStack, path: Path) -> None:
        if self._finds_leaks:
            self._leak_watch = stack.enter_context(LeakWatch(record=path))
        else:
            stack.enter_context(record(path))
        self.path = path

    def _begin_leak_watch(self, stack: ExitStack) -> None:
        import torch

        if not torch.cuda.is_available():
            return
        try:
            self._leak_watch = stack.enter_context(LeakWatch())
        except InputError as error:
            # LeakWatch cannot start, for example because another recording is running. The run
            # continues without it.
            warnings.warn(f"leaks are not watched for: {error}", RuntimeWarning, stacklevel=4)

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Ends the recording and the watch; further calls do nothing."""
        self._opened.close()

    def figures(self) -> dict[str, float]:
        """Returns each GPU's present memory, and its peaks since the program last reset them.

        The keys are names such as "gpu0_memory/peak_allocated_gib". Sizes are in GiB. This call
        also warns if the headroom is low.
        """
        gpus = self._gpus.read()
        for gpu in gpus:
            self._warn_if_thin(gpu)
        return {name: figure for gpu in gpus for name, figure in gpu.figures().items()}

    def log(self, step: int | None = None) -> None:
        """Passes the figures to the run's logger.

        Args:
            step: The number of the step; None for the logger's current one.
        """
        figures = self.figures()
        if self._log is not None and figures:
            self._log(figures, step)

    def _warn_if_thin(self, gpu: GpuMemory) -> None:
        index, total_bytes = gpu.counters.index, gpu.counters.total_bytes
        wanted = self._headroom.of(total_bytes or 0)
        if index in self._warned or gpu.headroom_bytes >= wanted:
            return
        self._warned.add(index)
        warnings.warn(
            f"GPU {index} has {format_size(gpu.headroom_bytes)} to spare at the peak of this run, "
            f"less than {format_size(wanted)}; `plimsoll fit` finds what takes less",
            HeadroomWarning,
            stacklevel=2,
        )
