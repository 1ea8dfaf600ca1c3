"""Makes modules recompute activations in the backward pass instead of keeping them."""

from __future__ import annotations

import contextlib
import functools
import re
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import checkpoint

from plimsoll.base.errors import InputError
from plimsoll.offloading.training.wrappers import unwrapped

if TYPE_CHECKING:
    from collections.abc import Iterator

_RANGE = re.compile(r"(\d+)-(\d+)")
_CACHES = ("layer_past", "past_key_value", "past_key_values")
"""Names of arguments for a cache of keys and values in versions of Transformers before 5.24."""


def recompute(model: torch.nn.Module, *names: str) -> None:
    """Makes modules of a model keep only their inputs, and recompute the rest when it is needed.

    This applies `torch.utils.checkpoint` to modules chosen by name. Recomputation repeats the same
    random numbers and leaves batch statistics alone, so the results stay the same. While autograd
    records gradients, layers of Transformers fill no cache of keys and values. While autograd
    records no gradients, the modules run as before.

    >>> plimsoll.recompute(model, "blocks.0-7", "head")  # doctest: +SKIP

    Args:
        model: The model that has the modules. DistributedDataParallel or FSDP may wrap it already.
        names: Names of modules, as for `model.get_submodule`; "blocks.0-7" means eight of them.

    Raises:
        InputError: If the model has no such module, or one named module contains another.
    """
    chosen = {name: _module(model, name) for each in names for name in expanded(each)}
    for name in chosen:
        for other in chosen:
            if name != other and name.startswith(f"{other}."):
                raise InputError(f"{name} is in {other}, which computes all of it again")
    for module in chosen.values():
        module.forward = _again(module)


def expanded(name: str) -> Iterator[str]:
    """Yields the names that a name with ranges means: "blocks.0-7" means eight names."""
    first, *rest = name.split(".")
    match = _RANGE.fullmatch(first)
    numbers = range(int(match[1]), int(match[2]) + 1) if match else None
    heads = [first] if numbers is None else map(str, numbers)
    for head in heads:
        if rest:
            yield from (f"{head}.{tail}" for tail in expanded(".".join(rest)))
        else:
            yield head


def _module(model: torch.nn.Module, name: str) -> torch.nn.Module:
    model = unwrapped(model)
    try:
        return unwrapped(model.get_submodule(name))
    except AttributeError:
        known = [each for each, _ in model.named_children()]
        raise InputError(
            f"{type(model).__name__} has no module {name!r}; it has {', '.join(known) or 'none'}"
        ) from None


def _again(module: torch.nn.Module) -> Any:
    forward = module.forward
    has_statistics = any(
        isinstance(each, torch.nn.modules.batchnorm._NormBase) and each.track_running_stats
        for each in module.modules()
    )
    options: dict[str, Any] = {"use_reentrant": False}
    if has_statistics:
        options["context_fn"] = lambda: (contextlib.nullcontext(), _counted_once(module))

    @functools.wraps(forward)
    def again(*given: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*given, **named)
        # A layer appends to its cache, so a recomputation would append a second time.
        named.update({name: None for name, each in named.items() if _is_cache(name, each)})
        given = tuple(None if _is_cache("", each) else each for each in given)
        return checkpoint(forward, *given, **options, **named)

    return again


def _is_cache(name: str, value: Any) -> bool:
    """Returns whether an argument of a layer is a cache of Transformers."""
    kinds = type(value).__mro__
    return name in _CACHES or any(each.__module__ == "transformers.cache_utils" for each in kinds)


@contextlib.contextmanager
def _counted_once(module: torch.nn.Module) -> Iterator[None]:
    """Keeps recomputation from updating batch statistics, because the first pass updated them."""
    norms = [
        each
        for each in module.modules()
        if isinstance(each, torch.nn.modules.batchnorm._NormBase) and each.track_running_stats
    ]
    before = [
        (norm, norm.running_mean, norm.running_var, norm.num_batches_tracked) for norm in norms
    ]
    for norm, mean, variance, count in before:
        norm.running_mean = None if mean is None else mean.clone()
        norm.running_var = None if variance is None else variance.clone()
        norm.num_batches_tracked = None if count is None else count.clone()
    try:
        yield
    finally:
        for norm, mean, variance, count in before:
            norm.running_mean, norm.running_var = mean, variance
            norm.num_batches_tracked = count
