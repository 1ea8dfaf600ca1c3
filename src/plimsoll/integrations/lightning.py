"""Lightning: a callback that watches the memory of a fit."""

from __future__ import annotations

from typing import Any, Unpack

from plimsoll.integrations.memory_watch import MemoryWatch, WatchOptions

try:
    from lightning.pytorch import Callback
except ImportError as error:
    raise ImportError(
        "this callback needs Lightning: pip install 'plimsoll-gpu[lightning]'"
    ) from error


class MemoryCallback(Callback):  # type: ignore[misc]  # Lightning has no types for us
    """Records a fit, watches it for leaks, and writes its memory to the Trainer's loggers.

    >>> from plimsoll.integrations.lightning import MemoryCallback  # doctest: +SKIP
    >>> trainer = Trainer(callbacks=[MemoryCallback(record="run.plim")])  # doctest: +SKIP

    The figures of `MemoryWatch` are logged every `log_every_n_steps` steps.
    """

    def __init__(self, **options: Unpack[WatchOptions]) -> None:
        """Makes a callback, with `record`, `leaks` and `headroom` as for `MemoryWatch`."""
        self.memory = MemoryWatch(**options)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Starts the watch."""
        self._last_step = trainer.global_step
        self.memory.__enter__()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Logs the figures at each step at which Lightning logs, under Lightning's step number."""
        steps = trainer.global_step
        if steps == self._last_step or steps % trainer.log_every_n_steps:
            return
        self._last_step = steps
        figures = self.memory.figures()
        for logger in trainer.loggers:
            logger.log_metrics(figures, step=steps - 1)  # Lightning counts steps from 0

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Ends the recording and the watch."""
        self.memory.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Ends the recording and the watch; Lightning calls no on_fit_end after an error."""
        self.memory.end()
