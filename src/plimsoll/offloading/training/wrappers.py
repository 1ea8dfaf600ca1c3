"""What PyTorch wraps models in so that several ranks train them."""

from __future__ import annotations

from typing import Any

_SHARDED_OF = "_fsdp_wrapped_module"


def is_wrapper(module: Any) -> bool:
    """Whether it only stands around another: DistributedDataParallel, or FSDP's first version."""
    kind = type(module)
    wraps = kind.__module__.startswith("torch.nn.parallel") and hasattr(module, "module")
    return wraps or kind.__name__ == "FullyShardedDataParallel"


def unwrapped(module: Any) -> Any:
    """What wrappers are around; of other modules, they themselves."""
    while is_wrapper(module):
        module = module.module
    return module


def plain_name(name: str) -> str:
    """What a part of a wrapped model is called without the wrappers in it."""
    return ".".join(part for part in name.split(".") if part != _SHARDED_OF)
