"""Treats batches as trees: finds their tensors, and makes the same tree with other tensors."""

from __future__ import annotations

import copy
import dataclasses
from collections import UserDict
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.nn.utils.rnn import PackedSequence

if TYPE_CHECKING:
    from collections.abc import Callable

Tree = TypeVar("Tree")


def map_tensors(function: Callable[[Any], Any], tree: Tree) -> Tree:
    """Returns the same tree with `function(tensor)` in place of each tensor.

    Supports tuples, named tuples, lists, dictionaries of any kind (including Hugging Face's
    `BatchEncoding`), dataclasses and packed sequences, and keeps their types. Other objects and
    unchanged containers pass through. A tensor that occurs twice is mapped once.
    """
    result: Tree = _walk(tree, function, {})
    return result


def tensors_of(tree: object) -> list[Any]:
    """Returns all tensors of a tree, each once, in order."""
    found: list[Any] = []

    def note(tensor: Any) -> Any:
        found.append(tensor)
        return tensor

    map_tensors(note, tree)
    return found


def _walk(value: Any, function: Callable[[Any], Any], done: dict[int, Any]) -> Any:
    # A recursive closure would be a reference cycle: it would keep the tensors until Python's
    # garbage collector runs.
    if isinstance(value, torch.Tensor):
        if id(value) not in done:
            done[id(value)] = function(value)
        return done[id(value)]
    if isinstance(value, PackedSequence):  # `batch_sizes` must stay on the host
        names = ("data", "sorted_indices", "unsorted_indices")
        parts = value._replace(**{n: _walk(getattr(value, n), function, done) for n in names})
        return parts if _differs(parts, value) else value
    if isinstance(value, tuple | list):
        parts = [_walk(part, function, done) for part in value]
        return _sequence(value, parts) if _differs(parts, value) else value
    if isinstance(value, dict | UserDict):
        changed = {key: _walk(part, function, done) for key, part in value.items()}
        changed = {key: part for key, part in changed.items() if part is not value[key]}
        return _mapping(value, changed) if changed else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [f.name for f in dataclasses.fields(value) if hasattr(value, f.name)]
        changed = {name: _walk(getattr(value, name), function, done) for name in fields}
        changed = {name: part for name, part in changed.items() if part is not getattr(value, name)}
        return _dataclass(value, changed) if changed else value
    return value


def _differs(parts: Any, value: Any) -> bool:
    return any(part is not old for part, old in zip(parts, value, strict=True))


def _sequence(value: Any, parts: list[Any]) -> Any:
    if hasattr(value, "_fields"):
        return type(value)._make(parts)
    if isinstance(value, list):
        copied = copy.copy(value)
        copied[:] = parts
        return copied
    return type(value)(parts)


def _mapping(value: Any, changed: dict[Any, Any]) -> Any:
    copied = copy.copy(value)
    for key, part in changed.items():
        copied[key] = part
    return copied


def _dataclass(value: Any, changed: dict[str, Any]) -> Any:
    copied = copy.copy(value)
    for name, part in changed.items():
        object.__setattr__(copied, name, part)  # the dataclass may be frozen
    return copied
