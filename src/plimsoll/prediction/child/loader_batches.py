"""Estimates the host memory of the batches that would wait in a loader while a GPU is busy."""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any

from plimsoll.base.watchers import standing_in

if TYPE_CHECKING:
    from types import ModuleType

    from plimsoll.base.watchers import Watchers


class LoaderBatches:
    """Watches PyTorch's loaders that have workers.

    A loader has up to `num_workers * prefetch_factor` batches requested or ready. If a real GPU is
    busy, all these batches are ready and wait. In the simulation the program takes each batch
    immediately.
    """

    def __init__(self, watchers: Watchers) -> None:
        self._watchers = watchers
        self._loaders: weakref.WeakKeyDictionary[Any, tuple[int, int]] = weakref.WeakKeyDictionary()

    @property
    def waiting_bytes(self) -> int:
        """The bytes of the batches that would be waiting now if the GPU were busy."""
        return sum(
            count * size
            for loader, (count, size) in list(self._loaders.items())
            if not getattr(loader, "_shutdown", False)
        )

    def install(self, torch: ModuleType) -> None:
        """Begins to observe the batches of loaders."""
        kind = getattr(torch.utils.data.dataloader, "_MultiProcessingDataLoaderIter", None)
        process = getattr(kind, "_process_data", None)
        if kind is None or process is None:
            return

        note = self._watchers.guarded("the batches of loaders", self._note)

        def watched(loader: Any, data: Any, *arguments: Any, **named: Any) -> Any:
            note(loader, data)
            return process(loader, data, *arguments, **named)

        kind._process_data = standing_in(process, watched)

    def _note(self, loader: Any, data: Any) -> None:
        """Notes the arrival of a batch, and how many batches are outstanding, this one included."""
        count, size = self._loaders.get(loader, (0, 0))
        waiting = int(getattr(loader, "_tasks_outstanding", 0)) + 1
        self._loaders[loader] = max(count, waiting), max(size, _bytes_of(data))


def _bytes_of(data: Any) -> int:
    """Returns the host memory of a batch's CPU tensors, in bytes.

    PyTorch rounds page-locked memory up to a power of two.
    """
    from plimsoll.offloading.data.tree import tensors_of  # imported here because it needs PyTorch

    return sum(
        1 << (tensor.nbytes - 1).bit_length() if tensor.is_pinned() else tensor.nbytes
        for tensor in tensors_of(data)
        if tensor.device.type == "cpu" and tensor.layout is sys.modules["torch"].strided
    )
