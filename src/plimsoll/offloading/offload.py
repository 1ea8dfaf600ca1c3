"""Moves autograd's saved tensors to host memory when the card's memory is short.

`offload` passes autograd's saved tensors to the `SavedStorages` of each device, which moves them.
Weights, small tensors and host tensors stay where they are.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from plimsoll.base.errors import InputError
from plimsoll.base.units import MiB, format_size, parse_size
from plimsoll.offloading.pinned import PinnedBuffers
from plimsoll.offloading.saved_storage import Handle
from plimsoll.offloading.saved_tensors import SavedStorages

if TYPE_CHECKING:
    from types import TracebackType

_SMALLEST = MiB

_lock = threading.Lock()
_buffers = PinnedBuffers()
_devices: dict[tuple[int, int], SavedStorages] = {}  # by device and budget


@dataclass(frozen=True)
class OffloadStatistics:
    """The bytes that the last step moved, on all devices.

    Attributes:
        saved_bytes: Bytes of the storages that could move.
        out_bytes: Bytes copied to host memory.
        back_bytes: Bytes copied back to the card.
        kept_bytes: Bytes that stayed on the card.
        waited_seconds: How long GPUs waited for unfinished copies.
        pinned_bytes: Page-locked host memory that all uses of `offload` hold now.
    """

    saved_bytes: int
    out_bytes: int
    back_bytes: int
    kept_bytes: int
    waited_seconds: float
    pinned_bytes: int


class offload(contextlib.ContextDecorator):  # noqa: N801
    """Keeps a program within a budget of GPU memory by moving saved tensors to host memory.

    Tensors that autograd saves inside the block leave the card during the forward pass, as far as
    the budget requires. They return before the backward pass needs them. The backward pass may run
    outside the block. Copies overlap with computation.

    The first step moves every tensor that can move, and measures the memory. A later step that
    repeats an earlier one moves only as much as the budget requires. plimsoll keeps the
    measurements, so the block may be entered for each step or once for all steps.

    The budget covers all tensors of the program on each GPU (`torch.cuda.memory_allocated`). It is
    a target, not a limit: a program exceeds the budget if its weights or its largest operation
    need more. In nested blocks the innermost budget applies.

    >>> with plimsoll.offload(budget="6GiB"):  # doctest: +SKIP
    ...     loss = train_step(batch)

    Args:
        budget: Bytes on each GPU, as a number or as "6GiB".

    Raises:
        InputError: If the budget is not a size above zero. Also when the block is entered, if the
            budget exceeds the memory of the largest GPU.
    """

    def __init__(self, budget: int | str) -> None:
        self._budget = parse_size(budget)
        self._entered = threading.local()

    def __enter__(self) -> offload:
        if torch.cuda.is_available():
            largest = max(
                torch.cuda.get_device_properties(index).total_memory
                for index in range(torch.cuda.device_count())
            )
            if self._budget > largest:
                raise InputError(
                    f"a budget of {format_size(self._budget)} is more than the GPU has: "
                    f"{format_size(largest)}"
                )
        hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, unpack)
        hooks.__enter__()
        self._stack().append(hooks)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack().pop().__exit__(kind, error, trace)

    def statistics(self) -> OffloadStatistics:
        """Returns what the last step moved. Call this after the step's backward pass."""
        steps = [
            device.movements() for (_, budget), device in _devices.items() if budget == self._budget
        ]
        saved, out = sum(step.saved for step in steps), sum(step.out for step in steps)
        return OffloadStatistics(
            saved_bytes=saved,
            out_bytes=out,
            back_bytes=sum(step.back for step in steps),
            kept_bytes=saved - out,
            waited_seconds=sum(step.waited_seconds() for step in steps),
            pinned_bytes=_buffers.held_bytes,
        )

    def _stack(self) -> list[Any]:
        if not hasattr(self._entered, "hooks"):
            self._entered.hooks = []
        stack: list[Any] = self._entered.hooks
        return stack

    def _pack(self, tensor: Any) -> Any:
        if not may_move(tensor):
            # if this returned the tensor itself, autograd would form a reference cycle
            return tensor.detach()
        storage = tensor.untyped_storage()
        if storage.nbytes() < _SMALLEST or torch.cuda.is_current_stream_capturing():
            return tensor.detach()
        return self._device(tensor.device).pack(tensor, storage)

    def _device(self, device: Any) -> SavedStorages:
        key = (device.index, self._budget)
        found = _devices.get(key)
        if found is None:
            with _lock:
                found = _devices.setdefault(key, SavedStorages(device, self._budget, _buffers))
        return found


def unpack(packed: Any) -> Any:
    """Returns the tensor that autograd saved; brings it back to the card if it has left."""
    if isinstance(packed, Handle):
        return packed.saved.owner.unpack(packed)
    return packed


def may_move(tensor: Any) -> bool:
    """Returns whether a tensor is an ordinary tensor on a GPU.

    Weights and views of weights do not count as ordinary.
    """
    if not tensor.is_cuda or type(tensor) is not torch.Tensor or tensor.layout != torch.strided:
        return False  # for example a Parameter
    if tensor.is_inference() or tensor.is_conj() or tensor.is_neg():
        return False
    whole = tensor if tensor._base is None else tensor._base
    return type(whole) is torch.Tensor and not (whole.is_leaf and whole.requires_grad)
