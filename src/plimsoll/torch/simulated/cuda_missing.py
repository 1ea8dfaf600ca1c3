"""Functions of a CUDA build's `torch._C` that plimsoll does not simulate: each raises an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_FUNCTIONS = ("_cuda_cudaHostAllocator",)
_FILE_FUNCTIONS = (
    *("_gds_register_buffer", "_gds_deregister_buffer", "_gds_register_handle"),
    *("_gds_deregister_handle", "_gds_load_storage", "_gds_save_storage"),
)
"""Functions that copy between files and GPU memory.

Not every PyTorch build has them. Without them, the functions of torch.cuda.gds raise an error.
"""
_CLASSES = ("_FastCudaLauncher", "_StaticCudaLauncher")


def not_simulated(name: str, where: str = "torch._C") -> Callable[..., NoReturn]:
    """Returns a function that raises NotImplementedError: plimsoll does not simulate `name`.

    Args:
        name: The function's name.
        where: The module of the function, for the message.
    """

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(f"plimsoll does not simulate {where}.{name}")

    refuse.__name__ = name.rpartition(".")[2]
    return refuse


def missing_class(name: str, *, base: type = object, where: str = "torch._C") -> Any:
    """Returns a class that programs can look up, but not instantiate."""
    return type(name, (base,), {"__init__": not_simulated(name, where), "__module__": where})


def missing_functions(c: ModuleType) -> dict[str, Any]:
    """Returns the members of `torch._C` that raise NotImplementedError, by name.

    Args:
        c: `torch._C` of the installed build.
    """
    missing: dict[str, Any] = {name: missing_class(name) for name in _CLASSES}
    for method in ("_load_kernel", "_launch_kernel", "_unload_kernel"):
        refuse = not_simulated(f"_StaticCudaLauncher.{method}")
        setattr(missing["_StaticCudaLauncher"], method, staticmethod(refuse))
    names = [*_FUNCTIONS, *(name for name in _FILE_FUNCTIONS if hasattr(c, name))]
    if not hasattr(c, "_has_gds"):
        missing["_has_gds"] = False
    return {**missing, **{name: not_simulated(name) for name in names}}
