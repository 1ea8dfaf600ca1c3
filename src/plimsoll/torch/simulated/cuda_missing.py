"""What a CUDA build has in `torch._C` and nobody can answer without a GPU: one clear error each."""

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
"""Of files that are read into a GPU; torch.cuda.gds refuses them itself in builds without them."""
_CLASSES = ("_FastCudaLauncher", "_StaticCudaLauncher")


def not_simulated(name: str, where: str = "torch._C") -> Callable[..., NoReturn]:
    """A function that says that it is not simulated.

    Args:
        name: Its name.
        where: The module that has it.
    """

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(f"plimsoll does not simulate {where}.{name}")

    refuse.__name__ = name.rpartition(".")[2]
    return refuse


def missing_class(name: str, *, base: type = object, where: str = "torch._C") -> Any:
    """A class that can be named and looked for; to make an object of it is not simulated."""
    return type(name, (base,), {"__init__": not_simulated(name, where), "__module__": where})


def missing_functions(c: ModuleType) -> dict[str, Any]:
    """The names that `torch._C` has for them.

    Args:
        c: `torch._C`, as the installed build has it.
    """
    missing: dict[str, Any] = {name: missing_class(name) for name in _CLASSES}
    for method in ("_load_kernel", "_launch_kernel", "_unload_kernel"):
        refuse = not_simulated(f"_StaticCudaLauncher.{method}")
        setattr(missing["_StaticCudaLauncher"], method, staticmethod(refuse))
    names = [*_FUNCTIONS, *(name for name in _FILE_FUNCTIONS if hasattr(c, name))]
    if not hasattr(c, "_has_gds"):
        missing["_has_gds"] = False
    return {**missing, **{name: not_simulated(name) for name in names}}
