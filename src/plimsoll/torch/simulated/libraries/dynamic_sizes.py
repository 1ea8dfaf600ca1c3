"""Chooses sizes that depend on data, for operations that have a fake implementation.

A fake implementation requests such a size from its context (`torch.library.get_ctx()`). When a
compiler traces the implementation, the context returns a symbol. plimsoll's context returns a
number within the bounds that the implementation gives. The simulation's setting for unknown data
decides whether the number is small, medium or large. A prediction with such sizes is a range.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.library import SIZE_OF_UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

    from plimsoll.torch.simulated.simulation import Simulation


class _Context:
    """The result of `torch.library.get_ctx()` while a fake implementation runs."""

    def __init__(self, simulation: Simulation, name: str, tensors: Sequence[Any]) -> None:
        self._unknown = simulation.setup.unknown
        self._name = name
        self._tensors = tensors

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> int:  # noqa: A002
        """Returns a size that depends on data.

        The simulation's setting for unknown data selects `min`, the middle, or `max`. If the caller
        gives no `max`, the largest operand's number of elements replaces it. The middle is then
        half of the longest dimension.
        """
        import torch

        torch.ops.plimsoll.assume(self._name, SIZE_OF_UNKNOWN)
        if self._unknown == "least":
            return min
        elements = [tensor.numel() for tensor in self._tensors]
        most = _greatest(elements, min) if max is None else max
        if self._unknown == "most":
            return most
        longest = [size for tensor in self._tensors for size in tensor.shape]
        half = _greatest(longest, min) // 2 if max is None else (min + max) // 2
        return sorted((min, half, most))[1]

    def create_unbacked_symint(self, *, min: int = 2, max: int | None = None) -> int:  # noqa: A002
        """Does the same as `new_dynamic_size`, under the older name of that method."""
        return self.new_dynamic_size(min=min, max=max)


def _greatest(numbers: Sequence[int], least: int) -> int:
    return max(numbers, default=least)


@contextmanager
def giving_sizes(simulation: Simulation, name: str, tensors: Sequence[Any]) -> Iterator[None]:
    """Makes `torch.library.get_ctx()` return a context that chooses sizes.

    Args:
        simulation: The simulated GPUs. Their setting for unknown data decides the sizes.
        name: Name of the operation.
        tensors: The operation's operands.
    """
    from torch._library.fake_impl import set_ctx_getter

    context = _Context(simulation, name, tensors)
    with set_ctx_getter(lambda: context):
        yield


def give_sizes(simulation: Simulation, module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads `torch._library.fake_impl`, and makes its Meta kernels run inside `giving_sizes`."""
    execute()

    def construct_meta_kernel(name: str, holder: Any) -> Callable[..., Any]:
        @functools.wraps(holder.kernel.func)
        def meta_kernel(*args: Any, **kwargs: Any) -> Any:
            import torch
            from torch.utils._pytree import tree_leaves

            leaves = tree_leaves((args, kwargs))
            tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            with giving_sizes(simulation, name, tensors):
                return holder.kernel(*args, **kwargs)

        return meta_kernel

    module.construct_meta_kernel = construct_meta_kernel  # type: ignore[attr-defined]
