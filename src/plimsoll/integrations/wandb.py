"""Weights & Biases: logs a run's memory together with the program's own figures."""

from __future__ import annotations

from typing import Any, Unpack

from plimsoll.integrations.memory_watch import MemoryWatch, WatchOptions


def watch(run: Any, **options: Unpack[WatchOptions]) -> MemoryWatch:
    """Makes a watch whose `log` writes the memory figures to a W&B run.

    >>> from plimsoll.integrations.wandb import watch  # doctest: +SKIP
    >>> with watch(wandb.init()) as memory:  # doctest: +SKIP
    ...     for batch in batches:
    ...         loss = train(batch)
    ...         memory.log()
    ...         wandb.log({"loss": loss})

    Without a step number, W&B puts the figures into the same row as the next logged values.

    Args:
        run: The run that `wandb.init` returned.
        options: `record`, `leaks` and `headroom`, as for `MemoryWatch`.
    """

    def log(figures: dict[str, float], step: int | None) -> None:
        if step is None:
            run.log(figures, commit=False)
        else:
            run.log(figures, step=step)

    return MemoryWatch(**options, log=log)
