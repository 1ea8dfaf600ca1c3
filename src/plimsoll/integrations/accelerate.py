"""Accelerate: logs a run's memory to all trackers of an `Accelerator`."""

from __future__ import annotations

from typing import Any, Unpack

from plimsoll.integrations.memory_watch import MemoryWatch, WatchOptions


def watch(accelerator: Any, **options: Unpack[WatchOptions]) -> MemoryWatch:
    """Makes a watch whose `log` writes the figures to the trackers of the `Accelerator`.

    >>> from plimsoll.integrations.accelerate import watch  # doctest: +SKIP
    >>> accelerator = Accelerator(log_with="tensorboard", project_dir="logs")  # doctest: +SKIP
    >>> accelerator.init_trackers("run")  # doctest: +SKIP
    >>> with watch(accelerator) as memory:  # doctest: +SKIP
    ...     for step, batch in enumerate(batches):
    ...         train(batch)
    ...         memory.log(step)

    Only the main process of a job logs; each process warns of its own leaks and low headroom.

    Args:
        accelerator: An `accelerate.Accelerator`.
        options: `record`, `leaks` and `headroom`, as for `MemoryWatch`.
    """

    def log(figures: dict[str, float], step: int | None) -> None:
        accelerator.log(figures, step=step)

    return MemoryWatch(**options, log=log)
