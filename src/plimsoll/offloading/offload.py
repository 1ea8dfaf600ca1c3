"""Saved-tensor offload: what the backward pass needs waits in host memory where the card is short.

`offload` hands what autograd saves to a `SavedStorages` a device, which moves it. What cannot or
should not move stays as it is: weights, small tensors, what is not on a GPU.
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
    """What the last step moved, on all devices.

    Attributes:
        saved_bytes: Of the storages that could move.
        out_bytes: Copied to host memory.
        back_bytes: Copied back.
        kept_bytes: That never left.
        waited_seconds: How long GPUs stood still because a copy was not done.
        pinned_bytes: Page-locked host memory that all of plimsoll's offloading holds.
    """

    saved_bytes: int
    out_bytes: int
    back_bytes: int
    kept_bytes: int
    waited_seconds: float
    pinned_bytes: int


class offload(contextlib.ContextDecorator):  # noqa: N801
    """Keep a program within a budget of GPU memory by moving saved tensors to host memory.

    What autograd saves inside the block leaves the card during the forward pass, as far as the
    budget needs, and is back before the backward pass needs it, wherever that runs. Copies overlap
    with computing. The first step moves all that can move, and measures; each later step that
    repeats an earlier one moves just enough. What is learned is kept for the process, so a block
    may be entered for each step or once for all.

    The budget covers all tensors of the program on each GPU (`torch.cuda.memory_allocated`); it is
    an aim, not a limit: a program whose weights, or whose largest operation, take more, takes more.
    Of nested blocks the inner one counts.

    >>> with plimsoll.offload(budget="6GiB"):  # doctest: +SKIP
    ...     loss = train_step(batch)

    Args:
        budget: Bytes on each GPU, as a number or as "6GiB".

    Raises:
        InputError: If it is not a size above zero, or, at entry, more than the largest GPU has.
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
        """What the last step moved; complete when its backward pass is."""
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
            return tensor.detach()  # not itself: autograd would hold itself in a circle
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
    """What was saved."""
    if isinstance(packed, Handle):
        return packed.saved.owner.unpack(packed)
    return packed


def may_move(tensor: Any) -> bool:
    """Whether a tensor is plain memory of a GPU, and no weight."""
    if not tensor.is_cuda or type(tensor) is not torch.Tensor or tensor.layout != torch.strided:
        return False  # a Parameter has a type of its own
    if tensor.is_inference() or tensor.is_conj() or tensor.is_neg():
        return False
    whole = tensor if tensor._base is None else tensor._base
    return type(whole) is torch.Tensor and not (whole.is_leaf and whole.requires_grad)
