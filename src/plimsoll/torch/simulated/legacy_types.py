"""torch.cuda.FloatTensor and similar types, which a PyTorch without CUDA cannot make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

_DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Byte": "uint8",
    "Char": "int8",
    "Short": "int16",
    "Int": "int32",
    "Long": "int64",
    "Bool": "bool",
}


def add_legacy_types(torch: ModuleType) -> None:
    """Adds FloatTensor and similar types to `torch.cuda`. Each can be the default tensor type."""

    class TensorType(type):
        dtype: Any

        def __instancecheck__(cls, instance: Any) -> bool:
            return bool(
                torch.is_tensor(instance) and instance.is_cuda and instance.dtype == cls.dtype
            )

        def __call__(cls, *args: Any, device: Any = "cuda") -> Any:
            if len(args) == 1 and not isinstance(args[0], (int, torch.Size)):
                return torch.tensor(args[0], dtype=cls.dtype, device=device)
            return torch.empty(*(args or (0,)), dtype=cls.dtype, device=device)

    for name, dtype in _DTYPES.items():
        members = {"dtype": getattr(torch, dtype), "is_cuda": True, "__module__": "torch.cuda"}
        setattr(torch.cuda, f"{name}Tensor", TensorType(f"{name}Tensor", (), members))

    set_default = torch._C._set_default_tensor_type
    is_default = False

    def set_default_tensor_type(kind: Any) -> None:
        nonlocal is_default
        if isinstance(kind, TensorType):
            set_default(getattr(torch, kind.__name__))
            torch.set_default_device("cuda")
            is_default = True
            return
        set_default(kind)
        if is_default:
            torch.set_default_device(None)
            is_default = False

    torch._C._set_default_tensor_type = set_default_tensor_type
