"""Tests overlapping tensors: refused writes, and two storages that share their memory."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.simulated import on_simulated_gpus

if TYPE_CHECKING:
    from collections.abc import Callable

torch = pytest.importorskip("torch")


def outcome(call: Callable[[], Any]) -> Any:
    """Returns a call's result as lists, or the text of its error."""
    try:
        result = call()
    except RuntimeError as error:
        return str(error)
    return None if result is None else result.tolist()


def writes(device: str) -> dict[str, Any]:
    """Returns the outcomes of operations that write to overlapping tensors."""

    def numbers() -> Any:
        return torch.arange(6.0, device=device)

    def one(size: int = 3) -> Any:
        return torch.zeros(1, device=device).expand(size)

    first = torch.tensor([0], device=device)
    ones = torch.ones(3, device=device)
    mask = torch.ones(5, dtype=torch.bool, device=device)
    on_expanded: dict[str, Callable[[], Any]] = {
        "add_": lambda: one().add_(1),
        "abs_": lambda: one().abs_(),
        "copy_": lambda: one().copy_(ones),
        "copy_ from the host": lambda: one().copy_(torch.ones(3)),
        "copy_ of another type": lambda: one().copy_(ones.int()),
        "normal_": lambda: one().normal_(),
        "scatter_": lambda: one().scatter_(0, first, 1.0),
        "index_copy_": lambda: one().index_copy_(0, first, ones[:1]),
        "index_add_": lambda: one().index_add_(0, first, ones[:1]),
        "masked_scatter_": lambda: one(5).masked_scatter_(mask, numbers()),
        "where": lambda: torch.where(ones > 0, ones, ones, out=one()),
        "index_select": lambda: torch.index_select(ones, 0, first, out=one()),
        "zero_": lambda: one().zero_(),
        "fill_": lambda: one().fill_(2),
    }
    both: dict[str, Callable[[Any, Any], Any]] = {
        "copy_": lambda to, of: to.copy_(of),
        "mul_": lambda to, of: to.mul_(of),
        "add": lambda to, of: torch.add(of, 1, out=to),
        "logical_not": lambda to, of: torch.logical_not(of, out=to),
        "take": lambda to, of: torch.take(of, torch.arange(5, device=device), out=to),
        "gather": lambda to, of: torch.gather(of, 0, torch.arange(5, device=device), out=to),
        "cat": lambda to, of: torch.cat([of[:2], of[2:]], out=to),
        "masked_select": lambda to, of: torch.masked_select(of, mask, out=to),
        "put_": lambda to, of: to.put_(first, of[:1]),
        "scatter_": lambda to, of: to.scatter_(0, first, of[1:2]),
        "index_put_": lambda to, of: to.index_put_((first,), of[1:2]),
        "sum": lambda to, of: torch.sum(of, 0, keepdim=True, out=to[:1]),
    }
    found = {f"expanded {name}": outcome(call) for name, call in on_expanded.items()}
    for name, call in both.items():
        # With start 1, `to` and `of` share a part of their memory. With 0, they share all of it.
        for start in (1, 0):
            memory = numbers()
            to, of = memory[start : start + 5], memory[:5]
            found[f"{name} {start}"] = outcome(partial(call, to, of))
    return found


@on_simulated_gpus()
def test_overlapping_writes_are_refused_where_those_of_the_host_are() -> None:
    on_host, on_device = writes("cpu"), writes("cuda")
    refused = {name for name, found in on_host.items() if isinstance(found, str)}
    assert {"expanded copy_", "copy_ 1", "cat 1", "expanded normal_"} <= refused
    assert {"expanded zero_", "mul_ 0"}.isdisjoint(refused)
    differing = {name for name in on_host if name in refused and on_device[name] != on_host[name]}
    assert not differing
    assert {name for name, found in on_device.items() if isinstance(found, str)} == refused


class _Pointer:
    """Stands in for another library's array, which shares a tensor's memory."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor
        self.__cuda_array_interface__ = tensor.__cuda_array_interface__


@on_simulated_gpus()
def test_values_belong_to_memory_whichever_storage_they_are_written_through() -> None:
    numbers = torch.arange(6.0, device="cuda")
    whole = torch.from_dlpack(numbers)
    whole[0] = 9
    torch.as_tensor(_Pointer(numbers[2:]), device="cuda").mul_(10)
    turned = torch.from_dlpack(numbers.view(2, 3).t())
    turned[1, 1] = 7
    assert numbers.tolist() == whole.tolist() == [9, 1, 20, 30, 7, 50]
    assert turned.tolist() == [[9, 30], [1, 7], [20, 50]]
    numbers.zero_()
    assert turned.sum().item() == 0
    # Each tensor's version counts only the writes that were made through this tensor.
    assert (numbers._version, whole._version) == (1, 1)
