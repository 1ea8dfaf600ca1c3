"""Stands in for vLLM's own operations that need a workspace or lack a fake implementation.

vLLM's other operations have fake implementations, and allocate only their results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.libraries.flash_attention_operations import attend, make_schedule
from plimsoll.torch.simulated.libraries.operations import unowned

if TYPE_CHECKING:
    from collections.abc import Callable


def _map_host(tensor: Any) -> Any:
    import torch

    return torch.ops.plimsoll.map_host(tensor)


def _attend_2(*arguments: Any) -> list[Any]:
    """Simulates vLLM's build of FlashAttention 2.

    It returns only the output and the logarithms of the softmax's sums. flash-attn also returns
    the attention weights and a random state.
    """
    from plimsoll.torch.simulated.libraries.stand_ins.flash_attn_2_cuda import varlen_fwd

    *own, count, generator = arguments  # flash-attn has the generator before the count
    attend: Any = varlen_fwd
    return list(attend(*own, generator, count)[:2])


KERNELS: dict[str, Callable[..., Any]] = {
    "_C::weak_ref_tensor": unowned,
    "_vllm_fa2_C::varlen_fwd": _attend_2,
    "_vllm_fa3_C::fwd": attend,
    "_vllm_fa3_C::get_scheduler_metadata": make_schedule,
}
HOST_KERNELS: dict[str, Callable[..., Any]] = {"_C::get_cuda_view_from_cpu_tensor": _map_host}
