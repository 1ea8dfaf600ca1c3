"""Stands in for bitsandbytes' CUDA library, with functions that take addresses and compute nothing.

The operations of bitsandbytes are Python functions. Each allocates memory, and then calls a
function of a shared library with the addresses of tensors. So the operations run unchanged, and the
stand-in for the library knows which tensors each function writes. The library itself allocates
memory only by `cudaMallocManaged`, for paged optimizers, and by `cublasCreate`. Its matrix products
have no workspace. This follows from csrc/ops.cu of version 0.50, and from the symbols that its
builds for CUDA 11.8 to 13.2 import.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_LIBRARY = re.compile(r"libbitsandbytes_cuda\d+\.so")
_NAME = re.compile(rb"\0(c[a-z_][a-z0-9_]{3,}|get_context)(?=\0)")
_HOST_LIBRARY = "libbitsandbytes_cpu.so"
_OF_HOST = "_cpu_"
"""Part of the names of functions that run on the host.

bitsandbytes' CPU library has these functions, too.
"""

_NOTHING_COMPUTED = (
    "plimsoll did not load its CUDA library; its kernels take their memory, but compute nothing"
)
_HANDLE = "plimsoll does not count the memory that its cuBLAS handle takes from the driver"
_HANDLE_BYTES = 66 << 20
"""The bytes of card memory that `get_context` took on an H200 with CUDA 13.0."""
_MANAGED = (
    "plimsoll puts managed memory on the host; in a real run it is on the card while that has room"
)
_FEW_OUTLIERS = (
    "plimsoll assumes that one feature in a thousand has outliers, as in trained models; "
    "--unknown changes this"
)
_UNKNOWN_KERNEL = "plimsoll does not know which tensors it writes, and assumes all"


@dataclass(frozen=True)
class _Kernel:
    """Describes a function of the library to plimsoll. All numbers are indices of arguments.

    Attributes:
        written: The arguments with the addresses of the tensors that the function writes.
        elements: The argument that gives the number of elements of the largest tensor; None if no
            argument does.
        product: The arguments that give rows, columns and terms of a matrix product; None if the
            function computes no matrix product.
    """

    written: tuple[int, ...]
    elements: int | None = None
    product: tuple[int, int, int] | None = None


_KERNELS: dict[str, _Kernel] = {
    r"cquantize_blockwise_\w+": _Kernel(written=(2, 3), elements=5),
    r"cdequantize_blockwise_\w+": _Kernel(written=(3,), elements=5),
    r"cgemm_4bit_inference_naive_\w+": _Kernel(written=(7,), product=(0, 1, 2)),
    r"cgemm_4bit_\w+": _Kernel(written=(6,), product=(8, 9, 10)),
    r"cigemmlt_\w+": _Kernel(written=(6,), product=(1, 2, 3)),
    r"c(batched_)?igemm": _Kernel(written=(8,), product=(3, 4, 5)),
    r"cdequant_mm_\w+": _Kernel(written=(3,)),
    r"cint8_vector_quant": _Kernel(written=(1, 2)),
    r"c\w+_8bit_blockwise_grad_\w+": _Kernel(written=(0, 2, 3, 13, 14), elements=-1),
    r"c\w+32bit_grad_\w+": _Kernel(written=(1, 2, 3, 4), elements=-1),
    r"c(fill|arange|_mul)_\w+": _Kernel(written=(0,), elements=-1),
}
"""Maps patterns for function names to descriptions. The first pattern that matches applies."""
_FINDS_OUTLIERS = "bitsandbytes::int8_vectorwise_quant"
_OUTLIER_FEATURES = 0.001
"""The fraction of features with outliers: Dettmers et al., LLM.int8(), 2022."""
_MOST_ELEMENT_BYTES = 4
_NORESERVE = 0x4000
"""Linux's MAP_NORESERVE. Python's `mmap` has this name only from Python 3.13 on."""


def stand_in_for_its_library(module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads `bitsandbytes.cextension`, with a stand-in for its CUDA library.

    bitsandbytes still searches for the library's file itself. If it has no build for this version
    of CUDA, it finds no file, and the stand-in is not used.
    """
    load = ctypes.cdll.LoadLibrary

    def load_library(path: str) -> Any:
        if not _LIBRARY.fullmatch(Path(path).name):
            return load(path)
        return _Library(Path(path))

    ctypes.cdll.LoadLibrary = load_library  # type: ignore[method-assign, assignment]
    try:
        execute()
    finally:
        del ctypes.cdll.LoadLibrary
    if isinstance(getattr(module.lib, "_lib", None), _Library):
        _assume("bitsandbytes", _NOTHING_COMPUTED)


def expect_few_outliers(module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads `bitsandbytes._ops`, and makes LLM.int8's search for outliers find few outliers."""
    execute()
    register = module.register_kernel

    def register_kernel(op: str, device: str, *args: Any) -> Any:
        add = register(op, device, *args)
        if op != _FINDS_OUTLIERS or args:
            return add
        return lambda kernel: add(_expecting_few_outliers(kernel))

    module.register_kernel = register_kernel  # type: ignore[attr-defined]


def _expecting_few_outliers(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a kernel: while it runs, few elements of a result of `Tensor.any` are true.

    The kernel calls `Tensor.any` over all tokens, to find the features with outliers.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    class Expecting(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            if func is torch.Tensor.any and result.dim() > 0:
                torch.ops.plimsoll.likely(result, _OUTLIER_FEATURES)
                _assume(_FINDS_OUTLIERS, _FEW_OUTLIERS)
            return result

    @functools.wraps(kernel)
    def call(*args: Any, **kwargs: Any) -> Any:
        with Expecting():
            return kernel(*args, **kwargs)

    return call


class _Library:
    """Stands in for the loaded library. Each function is an attribute, as in a `ctypes.CDLL`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._memory = _ManagedMemory()
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            self._names = {name.decode() for name in _NAME.findall(text)}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self._names:
            raise AttributeError(f"{self._path}: undefined symbol: {name}")
        if _OF_HOST in name:
            return getattr(ctypes.CDLL(str(self._path.with_name(_HOST_LIBRARY))), name)
        special: dict[str, Callable[..., int]] = {
            "get_context": _make_handle,
            "cget_managed_ptr": self._memory.take,
            "cprefetch": _do_nothing,
        }
        function = _Function(special.get(name) or partial(_launch, name, _kernel_of(name)))
        setattr(self, name, function)
        return function


class _Function:
    """A function of the library. The program may set types on it, which have no effect.

    Attributes:
        argtypes: Types of the arguments, as in `ctypes`.
        restype: Type of the result, as in `ctypes`.
    """

    argtypes: Any = None
    restype: Any = None

    def __init__(self, call: Callable[..., int]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> int:
        return self._call(*(getattr(each, "value", each) for each in arguments))


def _kernel_of(name: str) -> _Kernel | None:
    return next((each for text, each in _KERNELS.items() if re.fullmatch(text, name)), None)


def _launch(name: str, kernel: _Kernel | None, *arguments: Any) -> int:
    """Launches a kernel that takes time and computes nothing. Returns 0, for success."""
    import torch

    addresses = [each for each in arguments if isinstance(each, int) and each > 0]
    product: list[float] = []
    most = 0
    if kernel is None:
        _assume(f"bitsandbytes::{name}", _UNKNOWN_KERNEL)
        written = addresses
    else:
        written = [arguments[at] for at in kernel.written if arguments[at]]
        if kernel.product is not None:
            product = [float(arguments[at]) for at in kernel.product]
        if kernel.elements is not None:
            most = arguments[kernel.elements] * _MOST_ELEMENT_BYTES
    with torch._C._DisableTorchDispatch():
        torch.ops.plimsoll.launch_at(written, addresses, most, product)
    return 0


def _make_handle() -> int:
    _assume("bitsandbytes::get_context", _HANDLE, _HANDLE_BYTES)
    return 1


def _do_nothing(*_: Any) -> int:
    return 0


class _ManagedMemory:
    """Host memory in place of memory from `cudaMallocManaged`. bitsandbytes never frees it."""

    def __init__(self) -> None:
        self._kept: list[mmap.mmap] = []
        self._bytes = 0

    def take(self, size: int) -> int:
        """Returns the address of new host memory, which takes pages only when it is written."""
        if size == 0:
            return 0
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
        self._kept.append(memory)
        self._bytes += size
        _assume("bitsandbytes::cget_managed_ptr", _MANAGED, self._bytes)
        return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _assume(operation: str, what: str, size: int = 0) -> None:
    import torch

    with torch._C._DisableTorchDispatch():
        torch.ops.plimsoll.assume(operation, what, size)
