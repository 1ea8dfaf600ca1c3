"""Patches of PyTorch's Python code that are made once PyTorch is imported."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from plimsoll.torch.building.versions import companions
from plimsoll.torch.simulated.compiled.frames import let_through
from plimsoll.torch.simulated.compiled.inductor import fit_compiler
from plimsoll.torch.simulated.compiled.settings import triton_version
from plimsoll.torch.simulated.compiled.without_triton import compile_without_triton
from plimsoll.torch.simulated.legacy_types import add_legacy_types
from plimsoll.torch.simulated.libraries.loading import watch_loading
from plimsoll.torch.simulated.library import READS_WITHOUT_CONTENTS
from plimsoll.torch.simulated.line_search import let_search_go_on
from plimsoll.torch.simulated.pluggable import load_own_allocators

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from plimsoll.torch.simulated.simulation import Simulation

_MOST_VALUE_BYTES = 1 << 20


def patch(torch: ModuleType, simulation: Simulation) -> None:
    """Applies all patches to `torch`."""
    torch.cuda._device_count_nvml = lambda: -1
    # A device's index in the process is also its index in NVML: CUDA_VISIBLE_DEVICES is ignored.
    torch.cuda._get_nvml_device_index = _device_index
    if torch.version.cuda is None:
        torch.version.cuda = companions(simulation.version).cuda
    if triton_version() is None:
        compile_without_triton(torch)
    fit_compiler(torch, simulation)
    _patch_storage(torch)
    _patch_host_tensors(torch)
    _note_host_reads(torch)
    _patch_autograd(torch, simulation)
    watch_loading(torch, simulation)
    let_search_go_on(torch)
    load_own_allocators(torch.cuda.memory)
    add_legacy_types(torch)


def _device_index(device: Any = None) -> int:
    import torch

    index: int = torch.cuda._utils._get_device_index(device, optional=True)
    return index


def _patch_storage(torch: ModuleType) -> None:
    """Makes storages on simulated GPUs work: PyTorch's C++ code for them calls the CUDA runtime."""
    storage = torch.UntypedStorage
    make, resize = storage.__new__, storage.resize_
    write, read = storage._write_file, storage._set_from_file

    def new(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device is not None and torch.device(device).type == "cuda":
            size = args[0] if args else kwargs.get("size", 0)
            return torch.empty(size, dtype=torch.uint8, device=device).untyped_storage()
        return make(cls, *args, device=device, **kwargs)

    def resize_(self: Any, size: int) -> Any:
        if self.device.type != "cuda":
            return resize(self, size)
        tensor = torch.empty(0, dtype=torch.uint8, device=self.device).set_(self)
        torch.ops.plimsoll.resize_storage(tensor, size)
        return self

    def write_file(self: Any, *args: Any) -> None:
        write(self.cpu() if self.device.type == "cuda" else self, *args)

    def set_from_file(self: Any, *args: Any) -> Any:
        if self.device.type != "cuda":
            return read(self, *args)
        return self.copy_(read(storage(self.nbytes()), *args))

    storage.__new__ = new
    storage.resize_ = resize_
    storage._write_file = write_file
    storage._set_from_file = set_from_file


def _patch_host_tensors(torch: ModuleType) -> None:
    """Replaces `Tensor.new`, `Tensor.new_tensor`, and how processes send tensors.

    A virtual host tensor has no memory for its values. PyTorch cannot name the type of such a
    tensor, so `new` and `new_tensor` fail for it.

    If a process sends a virtual tensor, the receiver makes a tensor of the same shape. The receiver
    also makes a new tensor for a GPU tensor, because each process has its own simulated GPUs. The
    values of a small GPU tensor are sent with it.
    """
    from multiprocessing.reduction import ForkingPickler

    from torch.multiprocessing.reductions import reduce_tensor

    def makes_like(make: Any) -> Any:
        @functools.wraps(make)
        def made(self: Any, *args: Any, **kwargs: Any) -> Any:
            kind = torch.empty(0, dtype=self.dtype) if _is_virtual(self) else self
            return make(kind, *args, **kwargs)

        return made

    def reduce(tensor: Any) -> Any:
        if tensor.is_cuda:
            layout = (tensor.size(), tensor.stride(), tensor.dtype, tensor.requires_grad)
            return _rebuild_cuda, (type(tensor), *layout, tensor.device, _values(tensor))
        if not _is_virtual(tensor):
            return reduce_tensor(tensor)
        layout = (tensor.size(), tensor.stride(), tensor.dtype, tensor.requires_grad)
        return _rebuild_virtual, (type(tensor), *layout)

    torch.Tensor.new = makes_like(torch.Tensor.new)
    torch.Tensor.new_tensor = makes_like(torch.Tensor.new_tensor)
    for kind in (torch.Tensor, torch.nn.Parameter):
        ForkingPickler.register(kind, reduce)


def _note_host_reads(torch: ModuleType) -> None:
    """Lets `Tensor.numpy` and `Tensor.tolist` tell the report if a tensor has no contents.

    PyTorch reads the tensor's memory there without an operation that plimsoll sees.
    """

    def noted(read: Any) -> Any:
        @functools.wraps(read)
        def read_and_note(self: Any, *args: Any, **kwargs: Any) -> Any:
            if _is_virtual(self):
                torch.ops.plimsoll.assume(f"Tensor.{read.__name__}", READS_WITHOUT_CONTENTS)
            return read(self, *args, **kwargs)

        return read_and_note

    torch.Tensor.numpy = noted(torch.Tensor.numpy)
    torch.Tensor.tolist = noted(torch.Tensor.tolist)


def stack_virtual_batches(module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads `torch.utils.data._utils.collate`, and lets it stack virtual tensors.

    PyTorch's function stacks a worker's batch in shared memory. A virtual tensor has no memory for
    its values, so virtual tensors are stacked without shared memory.
    """
    execute()
    import torch

    collate = module.collate_tensor_fn

    def collate_tensor_fn(batch: Any, *, collate_fn_map: Any = None) -> Any:
        if _is_virtual(batch[0]):
            return torch.stack(batch, 0)
        return collate(batch, collate_fn_map=collate_fn_map)

    module.collate_tensor_fn = collate_tensor_fn  # type: ignore[attr-defined]
    module.default_collate_fn_map[torch.Tensor] = collate_tensor_fn


def _is_virtual(tensor: Any) -> bool:
    import torch

    # csrc/device/virtual.h gives this dispatch key to virtual tensors.
    key = torch._C._dispatch_key_parse("CustomRNGKeyId")
    return bool(torch._C._dispatch_keys(tensor).has(key))


def _rebuild_virtual(kind: Any, size: Any, stride: Any, dtype: Any, requires_grad: bool) -> Any:
    import torch

    tensor = torch.empty_strided(size, stride, dtype=dtype).zero_()
    if kind is torch.nn.Parameter:
        return kind(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)


def _values(tensor: Any) -> bytes:
    """Returns the bytes of a small tensor's values; `b""` for a large tensor."""
    import torch

    if not 0 < tensor.nbytes <= _MOST_VALUE_BYTES:
        return b""
    values: bytes = tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
    return values


def _rebuild_cuda(
    kind: Any,
    size: Any,
    stride: Any,
    dtype: Any,
    requires_grad: bool,
    device: Any,
    values: bytes,
) -> Any:
    import torch

    tensor = torch.empty_strided(size, stride, dtype=dtype, device=device)
    if values:
        tensor.copy_(torch.frombuffer(bytearray(values), dtype=dtype).reshape(size))
    if kind is torch.nn.Parameter:
        return kind(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)


def _patch_autograd(torch: ModuleType, simulation: Simulation) -> None:
    """Makes the program wait after each backward pass until all work of the pass has ended.

    The program also waits after a pass that failed.

    `torch.autograd.grad` and `torch.autograd.backward` call the same function by two names.
    csrc/python/autograd_fence.cpp explains which work would otherwise still go on.
    """
    run = torch.autograd.graph._engine_run_backward
    fence = simulation.library.lib.plimsoll_fence_autograd

    @functools.wraps(run)
    def run_to_the_end(*args: Any, **kwargs: Any) -> Any:
        try:
            return run(*args, **kwargs)
        finally:
            fence()

    let_through(run_to_the_end)
    torch.autograd._engine_run_backward = run_to_the_end
    torch.autograd.graph._engine_run_backward = run_to_the_end


def keep_native_shape_functions(module: ModuleType, execute: Callable[[], None]) -> None:  # noqa: ARG001
    """Loads `torch._meta_registrations`, and keeps PyTorch's Meta kernels that are written in C++.

    The module would replace them by Python functions. The C++ kernels are ten times faster, and
    find the shapes by the same code as the CUDA kernels.
    """
    import torch

    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    register = torch.library.Library.impl

    def register_if_missing(library: Any, op: Any, *args: Any, **kwargs: Any) -> None:
        name = op.name() if hasattr(op, "name") else None
        if name is None or not has_kernel(name, "Meta"):
            register(library, op, *args, **kwargs)

    torch.library.Library.impl = register_if_missing
    try:
        execute()
    finally:
        torch.library.Library.impl = register
