"""Makes a compiled flex_attention take the memory that PyTorch's fused kernel takes on a GPU.

torch.compile turns flex_attention into a kernel that keeps no scores. The kernel returns its output
and a logarithm for each row. Its backward pass allocates one number for each row
(torch/_inductor/kernel/flex). Four shapes were measured on an H200 with PyTorch 2.11. The simulated
memory was exact, except for a difference of 2 KiB in one case. If the program does not compile
flex_attention, PyTorch warns, computes the scores and keeps them, as on a GPU.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from plimsoll.base.units import format_size
from plimsoll.torch.simulated.compiled.frames import compile_too

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_SCORE_BYTES = 4
_FUSED = "plimsoll_fused"


def add_fused_attention(module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads `torch.nn.attention.flex_attention`, and gives flex_attention() a fused form.

    The fused form, which `fused_of` returns, takes the memory of PyTorch's fused kernel.
    """
    execute()
    attend = module.flex_attention

    @functools.wraps(attend)
    def flex_attention(query: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        if query.is_cuda and not torch.compiler.is_compiling():
            scores = query.numel() // query.shape[-1] * key.shape[-2] * _SCORE_BYTES
            torch.ops.plimsoll.assume(
                "flex_attention",
                "it is not compiled, so it holds several tensors of scores, "
                f"{format_size(scores)} each; a compiled kernel holds none",
            )
        return attend(query, key, *args, **kwargs)

    @functools.wraps(attend)
    def fused(
        query: Any,
        key: Any,
        value: Any,
        *args: Any,
        return_lse: bool = False,
        return_aux: Any = None,
        **kwargs: Any,
    ) -> Any:
        if not query.is_cuda or return_aux is not None or len(args) > 4:
            return attend(query, key, value, *args, return_lse=return_lse, **kwargs)
        out, logarithms = _kernel().apply(query, key, value)
        return (out, logarithms) if return_lse else out

    setattr(flex_attention, _FUSED, fused)
    compile_too(flex_attention)
    module.flex_attention = flex_attention  # type: ignore[attr-defined]


def fused_of(function: Any) -> Any:
    """Returns the fused form of flex_attention; any other function unchanged."""
    return getattr(function, _FUSED, function)


@functools.cache
def _kernel() -> Any:
    """Returns the fused kernel and its backward pass: they allocate memory and compute nothing."""
    import torch

    class Fused(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, query: Any, key: Any, value: Any) -> Any:
            out = query.new_empty((*query.shape[:-1], value.shape[-1]))
            logarithms = query.new_empty(query.shape[:-1], dtype=torch.float32)
            largest = torch.empty_like(logarithms)
            del largest
            ctx.save_for_backward(query, key, value, out, logarithms)
            ctx.mark_non_differentiable(logarithms)
            ctx.set_materialize_grads(False)  # the logarithms have no gradient
            return out, logarithms

        @staticmethod
        def backward(ctx: Any, gradient: Any, _: Any) -> Any:
            query, key, value, out, logarithms = ctx.saved_tensors
            whole = gradient.contiguous()
            row_sums = torch.empty_like(logarithms)
            gradients = tuple(map(torch.empty_like, (query, key, value)))
            del row_sums, whole, out
            return gradients

    return Fused
