"""Counts the samples that a simulated program processes, to find its samples per second.

If the program has PyTorch loaders, plimsoll counts the batches that the loaders yield, so a batch
counts once even if several calls of modules get it. In a program without a loader, plimsoll counts
the calls of modules: all calls up to the next backward pass count as one batch. A tensor that a
module made, such as the images of a GAN, is not a new sample.

A program with an optimizer trains, so only the batches that reach a backward pass count. If a
module is called with a batch, and the loader then yields the next batch or ends before a backward
pass, the batch was evaluated and does not count.
"""

from __future__ import annotations

import weakref
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plimsoll.base.watchers import standing_in
from plimsoll.engine.storages import storage_address
from plimsoll.torch.simulated.compiled.frames import let_through

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import ModuleType

    from plimsoll.base.watchers import Watchers

_MOST_RESULTS = 64
"""How many of the latest module results `SampleCount` remembers."""


@dataclass(frozen=True)
class Samples:
    """The number of samples up to a moment.

    Attributes:
        loaded: The samples from loaders; if the program trains, those that reached a backward pass.
        called: The samples that modules got, summed over the steps of each optimizer. The keys are
            ids as in `SampleCount.end_step`.
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


@dataclass
class _Waiting:
    """The batches of a loader's iterator that have reached no backward pass yet.

    Attributes:
        samples: How many samples these batches have.
        calls: The number of module calls before the loader yielded its latest batch.
    """

    samples: int
    calls: int


class SampleCount:
    """Observes loaders' batches, calls of modules and backward passes.

    Args:
        evaluated: Called when an evaluation seems to end, and again if the evaluation goes on.
    """

    def __init__(self, evaluated: Callable[[], None] = lambda: None) -> None:
        self._evaluated = evaluated
        self._is_evaluating = False
        self._trains = False
        self._loaded = self._trained = self._calls = 0
        self._waiting: weakref.WeakKeyDictionary[Any, _Waiting] = weakref.WeakKeyDictionary()
        self._called: Counter[int] = Counter()
        self._waits_for_tensor = False
        self._new = self._derived = self._before = 0
        self._results: deque[weakref.ref[Any]] = deque(maxlen=_MOST_RESULTS)

    def install(self, torch: ModuleType, watchers: Watchers) -> None:
        """Observes the batches of PyTorch's loaders, and backward passes, from now on."""
        self._watch_loaders(torch, watchers)
        run = torch.autograd.graph._engine_run_backward
        note = watchers.guarded("backward passes", self.note_backward)

        def watched(*arguments: Any, **named: Any) -> Any:
            if named.get("accumulate_grad"):  # `torch.autograd.grad` accumulates none
                note()
            return run(*arguments, **named)

        let_through(watched)
        torch.autograd._engine_run_backward = standing_in(run, watched)
        torch.autograd.graph._engine_run_backward = watched

    def _watch_loaders(self, torch: ModuleType, watchers: Watchers) -> None:
        kind = getattr(torch.utils.data.dataloader, "_BaseDataLoaderIter", None)
        following = getattr(kind, "__next__", None)
        if kind is None or following is None:
            return

        note = watchers.guarded("the samples of loaders", self._note_batch)
        leave = watchers.guarded("the end of loaders", self._leave_evaluated)

        def watched(loader: Any) -> Any:
            try:
                batch = following(loader)
            except StopIteration:
                leave(loader)
                raise
            note(loader, batch)
            return batch

        kind.__next__ = standing_in(following, watched)

    def _note_batch(self, loader: Any, batch: Any) -> None:
        size = _size_of(loader, batch)
        self._loaded += size
        self._leave_evaluated(loader)
        waiting = self._waiting.setdefault(loader, _Waiting(0, 0))
        waiting.samples += size
        waiting.calls = self._calls

    def _leave_evaluated(self, loader: Any) -> None:
        """Drops a loader's waiting batches if they were evaluated.

        The batches were evaluated if the program called a module after the loader yielded the last
        of them. Otherwise the program has only loaded the batches ahead.

        A framework may evaluate a loader's last batch after the loader has ended. So plimsoll can
        only guess when an evaluation ends. From the first evaluated batch to the next backward
        pass, each call of this method reports an end. The last report counts.
        """
        waiting = self._waiting.get(loader)
        if waiting is not None and waiting.calls < self._calls:
            del self._waiting[loader]
            self._is_evaluating = True
        if self._is_evaluating:
            self._evaluated()

    def note_backward(self) -> None:
        """Notes a backward pass. The program has now trained on all waiting batches."""
        self._is_evaluating = False
        self._trained += sum(each.samples for each in self._waiting.values())
        self._waiting.clear()
        self._before, self._new = self._before + self._new, 0

    def note_result(self, result: Any) -> None:
        """Remembers a module's result. A call with this result as an argument has no new batch."""
        if getattr(result, "grad_fn", None) is not None:
            self._results.append(weakref.ref(result))

    def note_call(self, arguments: tuple[Any, ...], *, is_outermost: bool) -> None:
        """Notes a call of a module, which may show the size of a batch.

        The batch is the first tensor argument of the outermost call. If that call has no tensor
        argument, the batch is the first tensor argument of the calls within it.
        """
        self._calls += 1
        if is_outermost:
            self._waits_for_tensor = True
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
            of: The number of the optimizer that made the step (`StepClock.number_of`). In a program
                without optimizers, the `id()` of the object in which `StepClock` keeps the ends of
                the steps.
        """
        self._called[of] += (self._before + self._new) or self._derived
        self._waits_for_tensor = False
        self._new = self._derived = self._before = 0

    def end_training_step(self, of: int) -> None:
        """Ends an optimizer's step, as `end_step` does. The step may have no backward pass."""
        self._trains = True
        self.note_backward()
        self.end_step(of)

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
            of: As in `end_step`.
            batch: The number of samples; None counts as 0.
        """
        self._called[of] += batch or 0

    def so_far(self) -> Samples:
        """Returns the counts up to now."""
        loaded = self._trained if self._trains else self._loaded
        return Samples(loaded, dict(self._called))


def batch_of(arguments: Iterable[Any]) -> int | None:
    """Returns the size of the first tensor's first dimension; None if there is no tensor."""
    shapes = (getattr(each, "shape", None) for each in arguments)
    return next((int(shape[0]) for shape in shapes if isinstance(shape, tuple) and shape), None)


def _size_of(loader: Any, batch: Any) -> int:
    """Returns the number of samples in a batch: the size of the first dimension of its tensors.

    If the tensors differ in that size, the result is the loader's batch size. Returns 0 if the
    loader's automatic batching is off. The loader then yields the items of its data set, which may
    be single samples.
    """
    from plimsoll.offloading.data.tree import tensors_of  # imported here because it needs PyTorch

    if not loader._auto_collation:
        return 0
    sizes = {int(tensor.shape[0]) if tensor.dim() else 0 for tensor in tensors_of(batch)}
    if len(sizes) == 1:
        return sizes.pop()
    size = getattr(getattr(loader, "_index_sampler", None), "batch_size", None)
    return size if isinstance(size, int) else 0
