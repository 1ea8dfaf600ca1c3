"""TensorBoard: logs a run's memory as scalars of a `SummaryWriter`."""

from __future__ import annotations

from typing import Any, Unpack

from plimsoll.integrations.memory_watch import MemoryWatch, WatchOptions


def watch(writer: Any, **options: Unpack[WatchOptions]) -> MemoryWatch:
    """Makes a watch whose `log` writes the figures as scalars.

    >>> from plimsoll.integrations.tensorboard import watch  # doctest: +SKIP
    >>> with watch(SummaryWriter()) as memory:  # doctest: +SKIP
    ...     for step, batch in enumerate(batches):
    ...         train(batch)
    ...         memory.log(step)

    Args:
        writer: A `torch.utils.tensorboard.SummaryWriter`, or another object with `add_scalar`.
        options: `record`, `leaks` and `headroom`, as for `MemoryWatch`.
    """

    def log(figures: dict[str, float], step: int | None) -> None:
        for name, figure in figures.items():
            writer.add_scalar(name, figure, step)

    return MemoryWatch(**options, log=log)
