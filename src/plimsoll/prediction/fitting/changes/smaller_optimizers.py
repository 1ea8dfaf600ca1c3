"""Changes that replace Adam by an optimizer with less state. The results then differ."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from plimsoll.prediction.fitting.changes.change import Change

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from plimsoll.prediction.fitting.script_text import ScriptText
    from plimsoll.prediction.survey import OptimizerUse

EIGHT_BITS = {"Adam": "Adam8bit", "AdamW": "AdamW8bit"}
"""PyTorch's names of optimizers, with bitsandbytes' names of their 8-bit versions."""


def smaller_optimizers(
    use: OptimizerUse,
    with_eight_bits: Callable[[ScriptText], ScriptText],
    with_adafactor: Callable[[ScriptText], ScriptText],
) -> Iterator[Change]:
    """Yields a change to 8-bit Adam, if bitsandbytes is installed, and a change to Adafactor.

    Args:
        use: The script's optimizer.
        with_eight_bits: Edits the script to use the optimizer of bitsandbytes.
        with_adafactor: Edits the script to use Adafactor.
    """
    kind = use.kind.rpartition(".")[2]
    excludes = frozenset({"step", "optimizer state"})
    if importlib.util.find_spec("bitsandbytes") is not None:
        yield Change(
            "optimizer",
            f"use bitsandbytes' {EIGHT_BITS[kind]}",
            short=EIGHT_BITS[kind],
            edit=with_eight_bits,
            caveat="its state is rounded to 8 bits",
            saves_bytes=use.state_bytes * 3 // 4 + 2 * use.parameter_bytes,
            excludes=excludes,
        )
    yield Change(
        "optimizer",
        f"use Adafactor instead of {kind}",
        short="Adafactor",
        edit=with_adafactor,
        caveat="it is another optimizer, which needs a learning rate of its own",
        saves_bytes=use.state_bytes + 2 * use.parameter_bytes,
        excludes=excludes,
    )
