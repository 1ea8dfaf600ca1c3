"""Hugging Face's Trainer: a callback that watches the memory of a training."""

from __future__ import annotations

from typing import Any, Unpack

from plimsoll.integrations.memory_watch import MemoryWatch, WatchOptions

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError(
        "this callback needs Hugging Face's Trainer: pip install 'plimsoll-gpu[hugging-face]'"
    ) from error


class MemoryCallback(TrainerCallback):  # type: ignore[misc]  # transformers has no types for us
    """Records a training, watches it for leaks, and adds its memory to what the Trainer logs.

    >>> from plimsoll.integrations.hugging_face import MemoryCallback  # doctest: +SKIP
    >>> MemoryCallback(record="run.plim").add_to(trainer)  # doctest: +SKIP
    >>> trainer.train()  # doctest: +SKIP

    Each line that the Trainer logs then has the figures of `MemoryWatch` in it, wherever it reports
    to and in `trainer.state.log_history`.
    """

    def __init__(self, **options: Unpack[WatchOptions]) -> None:
        """Make one for a Trainer, with `record`, `leaks` and `headroom` as for `MemoryWatch`."""
        self.memory = MemoryWatch(**options)

    def add_to(self, trainer: Any) -> None:
        """Put it before a Trainer's other callbacks: those that report then find the figures.

        In the Trainer's argument `callbacks` it would come last, and they would not.
        """
        trainer.add_callback(self)
        callbacks = trainer.callback_handler.callbacks
        callbacks.insert(0, callbacks.pop())

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin."""
        self.memory.__enter__()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:
        """Add the figures to what is logged, and to what is kept of it."""
        figures = self.memory.figures()
        logs.update(figures)
        state.log_history[-1].update(figures)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End the recording and the watch."""
        self.memory.end()
