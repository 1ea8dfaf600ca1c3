"""Recognises operations by which PyTorch prints a tensor.

PyTorch finds the digits of a printed tensor by `nonzero` and `masked_select`. It applies them to
the elements that it prints, so what they take is too small to matter, whatever the values are.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from plimsoll import _core

if TYPE_CHECKING:
    from collections.abc import Iterable

    from plimsoll.recordings.events import Frame

_MOST_PRINTED = 100_000
"""If PyTorch prints at most this many elements in full, printing takes less than a segment."""
_FILE = "torch/_tensor_str.py"


def prints_few() -> bool:
    """Returns whether PyTorch summarizes larger tensors, as it does unless the program asks."""
    module = sys.modules.get("torch._tensor_str")
    threshold = getattr(getattr(module, "PRINT_OPTS", None), "threshold", None)
    return isinstance(threshold, int | float) and threshold <= _MOST_PRINTED


def is_printing(frames: Iterable[Frame]) -> bool:
    """Returns whether a call stack with these frames prints a tensor."""
    return any(file.replace("\\", "/").endswith(_FILE) for file, *_ in frames)


def is_of_printing(stack: int) -> bool:
    """Returns whether the call stack with this number prints few elements of a tensor."""
    return bool(stack) and prints_few() and is_printing(_core.stack_frames(stack))
