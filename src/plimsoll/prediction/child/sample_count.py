"""Counts the samples that a simulated program processes, to find its samples per second.

If the program has PyTorch loaders, plimsoll counts the batches that the loaders yield, so a batch
counts once even if several calls of modules get it. In a program without a loader, plimsoll counts
the calls of modules: all calls up to the next backward pass count as one batch. A tensor that a
module made, such as the images of a GAN, is no new sample.
"""

from __future__ import annotations

import weakref
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plimsoll.base.watchers import standing_in
from plimsoll.engine.storages import storage_address

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import ModuleType

    from plimsoll.base.watchers import Watchers

_MOST_RESULTS = 64
"""How many results of modules are remembered: the latest ones."""


@dataclass(frozen=True)
class Samples:
    """The number of samples up to a moment.

    Attributes:
        loaded: The samples from loaders.
        called: By the id of each optimizer, the samples that modules got up to its latest step.
    """

    loaded: int
    called: Mapping[int, int]

    def since(self, before: Samples) -> int | None:
        """Returns the samples since an earlier moment; None if unknown.

        If several optimizers step in turn, they see the same samples, so the largest count is used.
        """
        loaded = self.loaded - before.loaded
        called = (count - before.called.get(of, 0) for of, count in self.called.items())
        return loaded or max(called, default=0) or None


class SampleCount:
    """Observes loaders' batches and calls of modules."""

    def __init__(self) -> None:
        self._loaded = 0
        self._called: Counter[int] = Counter()
        self._waits_for_tensor = False
        self._new = self._derived = self._before = 0
        self._gradient: tuple[int, int] | None = None
        self._results: deque[weakref.ref[Any]] = deque(maxlen=_MOST_RESULTS)

    def watch_loaders(self, torch: ModuleType, watchers: Watchers) -> None:
        """Counts the batches of PyTorch's loaders from now on."""
        kind = getattr(torch.utils.data.dataloader, "_BaseDataLoaderIter", None)
        following = getattr(kind, "__next__", None)
        if kind is None or following is None:
            return

        note = watchers.guarded("the samples of loaders", self._note_batch)

        def watched(loader: Any) -> Any:
            batch = following(loader)
            note(loader, batch)
            return batch

        kind.__next__ = standing_in(following, watched)

    def _note_batch(self, loader: Any, batch: Any) -> None:
        self._loaded += _size_of(loader, batch)

    def note_result(self, result: Any) -> None:
        """Remembers a module's result: if it becomes an argument later, it is no new sample."""
        if getattr(result, "grad_fn", None) is not None:
            self._results.append(weakref.ref(result))

    def note_call(self, module: Any, arguments: tuple[Any, ...], *, is_outermost: bool) -> None:
        """Notes a call of a module, which may show the size of a batch.

        The batch is the first tensor argument of the outermost call. If that call has no tensor
        argument, the batch is the first tensor argument of the calls within it.
        """
        if is_outermost:
            self._waits_for_tensor = True
            gradient = _gradient_of(module)
            if gradient != self._gradient:
                self._gradient = gradient
                self._before, self._new = self._before + self._new, 0
        if not self._waits_for_tensor:
            return
        batch = batch_of(arguments)
        if batch is None:
            return
        self._waits_for_tensor = False
        if any(map(self._is_derived, arguments)):
            self._derived = max(self._derived, batch)
        else:
            self._new = max(self._new, batch)

    def end_step(self, of: int) -> None:
        """Ends a step and counts its samples.

        Args:
            of: The `id()` of the optimizer that made the step. In a program without optimizers, the
                `id()` of the object in which `StepClock` keeps the ends of the steps.
        """
        self._called[of] += (self._before + self._new) or self._derived
        self._waits_for_tensor = False
        self._new = self._derived = self._before = 0

    def _is_derived(self, value: Any) -> bool:
        """Returns whether a module made `value`, or another tensor that uses the same memory."""
        if getattr(value, "grad_fn", None) is not None:
            return True
        if not hasattr(value, "untyped_storage"):
            return False
        address = storage_address(value)
        made = (result() for result in self._results)
        return address in {storage_address(each) for each in made if each is not None} - {0}

    def add(self, of: int, batch: int | None) -> None:
        """Adds a batch's samples to the count for `of`.

        Args:
            of: An id as in `end_step`.
            batch: The number of samples; None counts as 0.
        """
        self._called[of] += batch or 0

    def so_far(self) -> Samples:
        """Returns the counts up to now."""
        return Samples(self._loaded, dict(self._called))


def batch_of(arguments: Iterable[Any]) -> int | None:
    """Returns the size of the first tensor's first dimension; None if there is no tensor."""
    shapes = (getattr(each, "shape", None) for each in arguments)
    return next((int(shape[0]) for shape in shapes if isinstance(shape, tuple) and shape), None)


def _size_of(loader: Any, batch: Any) -> int:
    """Returns the number of samples in a batch: the size of the first dimension of its tensors.

    If the tensors differ in that size, the result is the loader's batch size. Returns 0 if the
    loader passes on its data set's items, which need not be batches.
    """
    from plimsoll.offloading.data.tree import tensors_of  # imported here because it needs PyTorch

    if not loader._auto_collation:
        return 0
    sizes = {int(tensor.shape[0]) if tensor.dim() else 0 for tensor in tensors_of(batch)}
    if len(sizes) == 1:
        return sizes.pop()
    size = getattr(getattr(loader, "_index_sampler", None), "batch_size", None)
    return size if isinstance(size, int) else 0


def _gradient_of(module: Any) -> tuple[int, int] | None:
    """Returns the identity and the version of a module's first gradient; None if it has none.

    Every backward pass changes one of them.
    """
    parameters = module.parameters() if hasattr(module, "parameters") else ()
    gradient = next((p.grad for p in parameters if p.is_leaf and p.grad is not None), None)
    return None if gradient is None else (id(gradient), int(getattr(gradient, "_version", 0)))
