"""Simulates the operations that libraries register with PyTorch.

By default an operation's fake implementation replaces its CUDA kernel (csrc/operation/call.cpp),
and allocates only the results. An operation that allocates more, or has no fake implementation,
needs one of two things: a Python function that allocates the same memory with PyTorch's operations;
or an `Operation`, which gives the shapes of the results and the size of the workspace.
"""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plimsoll.base.errors import InputError
from plimsoll.torch.simulated.libraries.dynamic_sizes import giving_sizes

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll.torch.simulated.simulation import Simulation

    Kernel = Callable[..., Any]


@dataclass(frozen=True)
class Operation:
    """The results of a kernel, and its workspace.

    Attributes:
        shapes: A function that describes the results. It receives the operation's arguments, with
            the tensors on `meta`, and returns either tensors like the results or the results'
            sizes. If `shapes` is None, the operation's fake implementation describes the results.
        workspace: The number of bytes that the kernel takes while it runs; or a function that
            returns this number, and is called with the operation's arguments.
    """

    shapes: Callable[..., Any] | None = None
    workspace: int | Callable[..., int] = 0


_waiting: dict[str, tuple[Operation | Kernel, str]] = {}
_libraries: list[Any] = []  # kept: when a `Library` is deleted, PyTorch removes its kernels


def simulate_operation(name: str, kernel: Operation | Kernel, *, on: str = "CUDA") -> None:
    """Replaces an operation's own kernel by `kernel`, once the operation is defined.

    Args:
        name: The operation's name: "library::operation", or with an overload
            "library::operation.out".
        kernel: An `Operation`, which describes the results and the workspace; or a function that
            runs instead of the kernel.
        on: The key of PyTorch's dispatcher under which `kernel` is registered, such as "CUDA".
    """
    _waiting[name] = kernel, on


def register_kernels(simulation: Simulation) -> None:
    """Registers the kernels from `simulate_operation` whose operations are defined by now."""
    import torch

    for name in list(_waiting):
        base, _, overload = name.partition(".")
        if not torch._C._dispatch_has_kernel(name) and not _has_schema(base, overload):
            continue
        kernel, on = _waiting.pop(name)
        library, _, operation = base.partition("::")
        packet = getattr(getattr(torch.ops, library), operation)
        op = getattr(packet, overload or "default")
        if isinstance(kernel, Operation):
            kernel = functools.partial(_run, simulation, op, kernel)
        fragment = torch.library.Library(library, "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns that a kernel is replaced
            fragment.impl(op, kernel, on, allow_override=True)
        _libraries.append(fragment)


def _has_schema(base: str, overload: str) -> bool:
    import torch

    return any(
        schema.overload_name == overload for schema in torch._C._jit_get_schemas_for_operator(base)
    )


def _run(simulation: Simulation, op: Any, of: Operation, *args: Any, **kwargs: Any) -> Any:
    """Allocates a kernel's results and workspace and launches it, without computing values."""
    import torch
    from torch.utils._pytree import tree_leaves, tree_map_only

    def on_meta(tensor: Any) -> Any:
        return torch.empty_strided(
            tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta"
        )

    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    device = next(tensor.device for tensor in tensors if tensor.is_cuda)
    returns = op._schema.returns
    written = [kwargs.get(a.name, args[i] if i < len(args) else None)
               for i, a in enumerate(op._schema.arguments)
               if a.alias_info is not None and a.alias_info.is_write]  # fmt: skip
    shapes: list[Any] = [None] * len(returns)
    if any(returned.alias_info is None for returned in returns):
        on = tree_map_only(torch.Tensor, on_meta, (args, kwargs))
        with giving_sizes(simulation, op.name(), tensors):
            made = (of.shapes or op)(*on[0], **on[1])
        shapes = _as_results(made, len(returns), tensors[0].dtype)
    size = of.workspace(*args, **kwargs) if callable(of.workspace) else of.workspace
    aliased = iter(written)
    results = [
        next(aliased)
        if returned.alias_info is not None
        else tree_map_only(torch.Tensor, functools.partial(_made, device=device), shape)
        for returned, shape in zip(returns, shapes, strict=True)
    ]
    workspace = torch.empty(size, dtype=torch.uint8, device=device) if size else None
    changed = [t for t in tree_leaves((results, written)) if isinstance(t, torch.Tensor)]
    caches = [t for t in _caches(op, args, kwargs) if isinstance(t, torch.Tensor)]
    whole = {id(t): t.nbytes for t in (*tensors, *changed)}
    cached = sum(whole.pop(id(tensor), 0) for tensor in caches)
    moved = sum(whole.values()) + min(cached, sum(whole.values()))
    with torch.cuda.device(device):
        torch.ops.plimsoll.launch(changed, moved, [], [], tensors[0].dtype)
    del workspace
    return results[0] if len(results) == 1 else tuple(results) if results else None


def _caches(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Returns the arguments whose names contain "cache".

    A kernel reads or writes only a few rows of such an argument.
    """
    given = {**dict(zip((a.name for a in op._schema.arguments), args, strict=False)), **kwargs}
    return [value for name, value in given.items() if "cache" in name]


def _made(shape: Any, device: Any) -> Any:
    import torch

    return torch.empty_strided(shape.size(), shape.stride(), dtype=shape.dtype, device=device)


def _as_results(made: Any, count: int, dtype: Any) -> list[Any]:
    """Returns a list of tensors, made from the result of a call of `Operation.shapes`.

    If `shapes` returned only the size of a result, a tensor of this size is made on `meta`.
    """
    import torch

    def is_size(value: Any) -> bool:
        return isinstance(value, (tuple, list)) and all(isinstance(n, int) for n in value)

    results = [made] if count == 1 and not _is_one_tuple(made, is_size) else list(made)
    if len(results) != count:
        raise InputError(f"shapes returned {len(results)} results where there are {count}")
    return [
        torch.empty(tuple(result), dtype=dtype, device="meta") if is_size(result) else result
        for result in results
    ]


def _is_one_tuple(made: Any, is_size: Callable[[Any], bool]) -> bool:
    return isinstance(made, tuple) and len(made) == 1 and not is_size(made)


def unowned(tensor: Any) -> Any:
    """Returns a view of a tensor that does not keep the tensor's memory alive."""
    import torch

    return torch.ops.plimsoll.unowned(tensor)
