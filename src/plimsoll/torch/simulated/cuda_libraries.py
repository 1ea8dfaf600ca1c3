"""NVIDIA's libraries in `torch._C`: the runtime, cuDNN, NVTX, cuSPARSELt."""

from __future__ import annotations

from enum import IntEnum
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.cuda_missing import not_simulated

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll.torch.simulated.simulation import Simulation


def _module(name: str, **members: Any) -> ModuleType:
    module = ModuleType(name)
    module.__dict__.update(members)
    return module


def _cudart(simulation: Simulation, use: Callable[[int], None]) -> ModuleType:
    lib = simulation.library.lib

    class CudaError(int):
        success = 0

    def mem_get_info(index: int) -> tuple[int, int]:
        use(index)
        simulation.refuse_after_failure()
        simulation.note_size_read()
        return simulation.card_memory(index)

    return _module(
        "torch._C._cudart",
        cudaError=CudaError,
        cudaGetErrorString=lambda code: f"error {code}",
        cudaMemGetInfo=mem_get_info,
        cudaProfilerStart=lambda: 0,
        cudaProfilerStop=lambda: 0,
        cudaHostRegister=lambda address, size, flags: CudaError(lib.plimsoll_pin(address, size)),
        cudaHostUnregister=lambda address: CudaError(lib.plimsoll_unpin(address)),
        cudaDeviceSynchronize=lambda: 0,
        cudaStreamCreate=not_simulated("_cudart.cudaStreamCreate"),
        cudaStreamDestroy=not_simulated("_cudart.cudaStreamDestroy"),
    )


def _can_use_attention(kernel: int, inputs: Any, debug: bool = False) -> bool:
    """Returns whether PyTorch's fused attention kernel number `kernel` accepts the inputs."""
    del debug  # plimsoll does not print why a kernel is refused
    import torch

    def laid_out(tensor: Any) -> Any:
        """Returns a jagged tensor's values as one sequence; other tensors unchanged."""
        if tensor is None or not tensor.is_nested or tensor.layout != torch.jagged:
            return tensor
        return tensor._values.detach().unsqueeze(0).requires_grad_(tensor.requires_grad)

    where = map(laid_out, (inputs.query, inputs.key, inputs.value, inputs.attn_mask))
    how = (inputs.dropout, inputs.is_causal, inputs.enable_gqa)
    return bool(torch.ops.plimsoll.can_use_attention(*where, *how, kernel))


def library_functions(simulation: Simulation, use: Callable[[int], None]) -> dict[str, Any]:
    """Returns the members of `torch._C` for NVIDIA's libraries, by name.

    Args:
        simulation: The GPUs.
        use: Creates a device's CUDA context if it has none; called before the device is used.
    """
    functions: dict[str, Any] = {"_cudart": _cudart(simulation, use)}
    functions["_cudnn"] = _module(
        "torch._C._cudnn",
        is_cuda=True,
        RNNMode=IntEnum("RNNMode", ["rnn_relu", "rnn_tanh", "lstm", "gru"], start=0),
        getVersionInt=lambda: 91900,
        getRuntimeVersion=lambda: (9, 19, 0),
        getCompileVersion=lambda: (9, 19, 0),
    )
    ranges = ("rangePushA", "rangePop", "rangeStartA", "rangeEnd", "markA")
    of_device = ("deviceRangeStart", "deviceRangeEnd")
    nothing = dict.fromkeys((*ranges, *of_device), lambda *_: 0)
    functions["_nvtx"] = _module("torch._C._nvtx", **nothing)
    for name, kernel in (("flash", 1), ("mem_efficient", 2), ("cudnn", 3)):
        functions[f"_can_use_{name}_attention"] = partial(_can_use_attention, kernel)
    functions["_cusparselt"] = _module(
        "torch._C._cusparselt",
        getVersionInt=lambda: 801,
        mm_search=not_simulated("_cusparselt.mm_search"),
    )
    functions["_cudnn_clear_dropout_state"] = lambda: None
    functions["_cuda_getCurrentBlasHandle"] = lambda: 1
    functions["_cuda_getCurrentSolverHandle"] = lambda: 1
    functions["_cuda_getHipblasltVersion"] = lambda: None
    functions["_rocm_is_backward_pass"] = lambda: False
    functions["_cuda_jiterator_compile_and_launch_kernel"] = _launch_elementwise
    return functions


def _launch_elementwise(
    code: str,
    kernel_name: str,
    return_by_ref: bool,
    num_outputs: int,
    tensors: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Allocates the results of a torch.cuda.jiterator kernel, without computing them."""
    import torch

    shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
    dtype = tensors[0].dtype
    for tensor in tensors[1:]:
        dtype = torch.promote_types(dtype, tensor.dtype)
    made = tuple(
        torch.empty(shape, dtype=dtype, device=tensors[0].device) for _ in range(num_outputs)
    )
    return made[0] if num_outputs == 1 else made
