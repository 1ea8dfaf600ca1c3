"""Hugging Face's Trainer: a callback that watches the memory of a training run."""

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
    """Records a training run, watches it for leaks, and adds its memory to the Trainer's logs.

    >>> from plimsoll.integrations.hugging_face import MemoryCallback  # doctest: +SKIP
    >>> MemoryCallback(record="run.plim").add_to(trainer)  # doctest: +SKIP
    >>> trainer.train()  # doctest: +SKIP

    Each logged line then contains the figures of `MemoryWatch`, in every tracker and in
    `trainer.state.log_history`.
    """

    def __init__(self, **options: Unpack[WatchOptions]) -> None:
        """Makes a callback, with `record`, `leaks` and `headroom` as for `MemoryWatch`."""
        self.memory = MemoryWatch(**options)

    def add_to(self, trainer: Any) -> None:
        """Adds this callback to a Trainer, before all other callbacks.

        Callbacks that report to trackers then see the figures. If this callback were passed in the
        Trainer's argument `callbacks`, it would run after the trackers' callbacks.
        """
        trainer.add_callback(self)
        callbacks = trainer.callback_handler.callbacks
        callbacks.insert(0, callbacks.pop())

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Starts the watch."""
        self.memory.__enter__()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:
        """Adds the figures to the logged values and to the log history."""
        figures = self.memory.figures()
        logs.update(figures)
        state.log_history[-1].update(figures)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Ends the recording and the watch."""
        self.memory.end()
