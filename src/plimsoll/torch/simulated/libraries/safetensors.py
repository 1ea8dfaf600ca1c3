"""Makes up checkpoints: safe_open returns tensors for certain paths that do not exist."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

_FOLDER = Path("/made-by-plimsoll")  # no file system has this folder
_TYPES = {
    **{"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"},
    **{"int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL"},
}
_checkpoints: dict[str, Callable[[], dict[str, Any]]] = {}


def new_checkpoint(name: str, make: Callable[[], dict[str, Any]]) -> str:
    """Returns the path of a new made-up checkpoint. No file exists at this path.

    Args:
        name: The name of the model.
        make: Makes the tensors; called when they are first read.
    """
    path = str(_FOLDER / str(len(_checkpoints)) / f"{Path(name).name}.safetensors")
    _checkpoints[path] = cache(make)
    return path


def is_made(paths: Any) -> bool:
    """Returns whether the first of `paths` is that of a made-up checkpoint."""
    return bool(paths) and isinstance(paths, (list, tuple)) and paths[0] in _checkpoints


def open_made_checkpoints(module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads `safetensors`, and lets safe_open open made-up checkpoints."""
    execute()
    safe_open = module.safe_open

    def open_(filename: Any, *arguments: Any, **named: Any) -> Any:
        make = _checkpoints.get(os.fspath(filename))
        if make is None:
            return safe_open(filename, *arguments, **named)
        return _Opened(make(), named.get("device", "cpu"))

    module.safe_open = open_  # type: ignore[attr-defined]


class _Opened:
    """A made-up checkpoint, opened: works like the result of safetensors.safe_open."""

    def __init__(self, tensors: dict[str, Any], device: Any) -> None:
        self._tensors = tensors
        self._device = device

    def __enter__(self) -> _Opened:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def keys(self) -> Iterable[str]:
        return list(self._tensors)

    offset_keys = keys

    def metadata(self) -> dict[str, str]:
        return {"format": "pt"}

    def get_tensor(self, name: str) -> Any:
        return self._tensors[name].to(self._device, copy=True)

    def get_tensors(self) -> dict[str, Any]:
        return {name: self.get_tensor(name) for name in self._tensors}

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self._tensors[name], self._device)


class _Slice:
    """A tensor of a made-up checkpoint; the program reads parts of it."""

    def __init__(self, tensor: Any, device: Any) -> None:
        self._tensor = tensor
        self._device = device

    def __getitem__(self, index: Any) -> Any:
        return self._tensor[index].to(self._device, copy=True)

    def get_shape(self) -> list[int]:
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        return _TYPES[str(self._tensor.dtype).removeprefix("torch.")]
