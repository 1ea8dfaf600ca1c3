"""Counts the samples that a simulated program takes, so that a step's rate can be said.

PyTorch's loaders say best how many there are: a batch that two modules see, or one module twice, is
one. In a program without a loader the calls of its modules say it. Calls count as one batch until a
backward pass has changed the gradients; what a module made, as a GAN's images, is no new sample.
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
"""The number of the newest module results that are kept."""


@dataclass(frozen=True)
class Samples:
    """How many samples there were up to a moment.

    Attributes:
        loaded: The samples that loaders gave.
        called: Those that modules were called with before the steps of each optimizer.
    """

    loaded: int
    called: Mapping[int, int]

    def since(self, before: Samples) -> int | None:
        """Those after an earlier moment; None where none are known.

        Optimizers that take turns see the same samples, so the largest count holds.
        """
        loaded = self.loaded - before.loaded
        called = (count - before.called.get(of, 0) for of, count in self.called.items())
        return loaded or max(called, default=0) or None


class SampleCount:
    """Hears of loaders' batches and of calls of modules."""

    def __init__(self) -> None:
        self._loaded = 0
        self._called: Counter[int] = Counter()
        self._waits_for_tensor = False
        self._new = self._derived = self._before = 0
        self._gradient: tuple[int, int] | None = None
        self._results: deque[weakref.ref[Any]] = deque(maxlen=_MOST_RESULTS)

    def watch_loaders(self, torch: ModuleType, watchers: Watchers) -> None:
        """Count what PyTorch's loaders give from now on."""
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
        """A module has returned; a detached result that is a module's input is no new sample."""
        if getattr(result, "grad_fn", None) is not None:
            self._results.append(weakref.ref(result))

    def note_call(self, module: Any, arguments: tuple[Any, ...], *, is_outermost: bool) -> None:
        """A module is called. A batch is the first tensor of the outermost one, or in it."""
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
        """An optimizer takes its step, or whatever else ends a step: the next batch begins."""
        self._called[of] += (self._before + self._new) or self._derived
        self._waits_for_tensor = False
        self._new = self._derived = self._before = 0

    def _is_derived(self, value: Any) -> bool:
        """Whether a module made a tensor, or the memory that it shares."""
        if getattr(value, "grad_fn", None) is not None:
            return True
        if not hasattr(value, "untyped_storage"):
            return False
        address = storage_address(value)
        made = (result() for result in self._results)
        return address in {storage_address(each) for each in made if each is not None} - {0}

    def add(self, of: int, batch: int | None) -> None:
        """Count samples of a step that is known as a whole."""
        self._called[of] += batch or 0

    def so_far(self) -> Samples:
        """Those up to now."""
        return Samples(self._loaded, dict(self._called))


def batch_of(arguments: Iterable[Any]) -> int | None:
    """The first dimension of the first tensor; None where there is none."""
    shapes = (getattr(each, "shape", None) for each in arguments)
    return next((int(shape[0]) for shape in shapes if isinstance(shape, tuple) and shape), None)


def _size_of(loader: Any, batch: Any) -> int:
    """The dimension that all tensors of a batch share, or else the loader's batch size.

    0 where the loader passes on what its data set gives, which may be no batch.
    """
    from plimsoll.offloading.data.tree import tensors_of  # which needs PyTorch

    if not loader._auto_collation:
        return 0
    sizes = {int(tensor.shape[0]) if tensor.dim() else 0 for tensor in tensors_of(batch)}
    if len(sizes) == 1:
        return sizes.pop()
    size = getattr(getattr(loader, "_index_sampler", None), "batch_size", None)
    return size if isinstance(size, int) else 0


def _gradient_of(module: Any) -> tuple[int, int] | None:
    """The state of a module's first gradient, which every backward pass changes."""
    parameters = module.parameters() if hasattr(module, "parameters") else ()
    gradient = next((p.grad for p in parameters if p.is_leaf and p.grad is not None), None)
    return None if gradient is None else (id(gradient), int(getattr(gradient, "_version", 0)))
