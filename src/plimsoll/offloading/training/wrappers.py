"""Finds the model inside the modules that PyTorch wraps around it to train on several ranks."""

from __future__ import annotations

from typing import Any

_SHARDED_OF = "_fsdp_wrapped_module"


def is_wrapper(module: Any) -> bool:
    """Tells whether a module wraps another: DistributedDataParallel, or FSDP's first version."""
    kind = type(module)
    wraps = kind.__module__.startswith("torch.nn.parallel") and hasattr(module, "module")
    return wraps or kind.__name__ == "FullyShardedDataParallel"


def unwrapped(module: Any) -> Any:
    """Returns the module inside all wrappers. Returns a module without wrappers unchanged."""
    while is_wrapper(module):
        module = module.module
    return module


def plain_name(name: str) -> str:
    """Returns a module's name in the unwrapped model: leaves out the parts that FSDP adds."""
    return ".".join(part for part in name.split(".") if part != _SHARDED_OF)
