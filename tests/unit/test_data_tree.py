"""Tests `map_tensors`, which replaces the tensors in a batch, on batches of all kinds."""

from __future__ import annotations

import collections
import dataclasses
import gc
import weakref
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

from plimsoll.offloading.data.tree import map_tensors, tensors_of  # noqa: E402


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    a: Any
    b: int = dataclasses.field(init=False, default=3)


def doubled(tree: Any) -> Any:
    return map_tensors(lambda tensor: tensor * 2, tree)


X = torch.ones(2)


def test_containers_keep_their_types() -> None:
    assert doubled(X).tolist() == [2, 2]
    assert doubled(Pair(X, 1))._fields == ("a", "b")
    assert doubled(Pair(X, 1)).a.tolist() == [2, 2]
    assert doubled(Record((X,))).a[0].tolist() == [2, 2]
    assert doubled(Record(X)).b == 3
    counted = doubled(collections.defaultdict(list, a=X))
    assert counted["a"].tolist() == [2, 2]
    assert counted["missing"] == []
    assert list(doubled(collections.OrderedDict(b=X, a=1))) == ["b", "a"]
    assert X.tolist() == [1, 1]


def test_what_has_no_tensors_is_the_same_object() -> None:
    for thing in ([1, "a"], {"a": None}, Pair(1, 2), Record(5), object(), torch.Size([3]), Record):
        assert doubled(thing) is thing


def test_hugging_faces_batches_and_outputs() -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_outputs import BaseModelOutput

    batch = transformers.BatchEncoding({"input_ids": X, "text": "a"})
    found = doubled(batch)
    assert type(found) is transformers.BatchEncoding
    assert found["input_ids"].tolist() == found.input_ids.tolist() == [2, 2]
    assert batch["input_ids"].tolist() == [1, 1]
    output = BaseModelOutput(last_hidden_state=X)
    assert doubled(output).last_hidden_state.tolist() == doubled(output)[0].tolist() == [2, 2]
    assert output.last_hidden_state.tolist() == [1, 1]


def test_lengths_of_packed_sequences_stay_on_the_host() -> None:
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    found = doubled(packed)
    assert found.data.tolist() == [2] * 5
    assert found.batch_sizes is packed.batch_sizes


def test_a_tensor_that_occurs_twice_is_asked_for_once() -> None:
    first, (second,) = doubled([X, [X]])
    assert first is second
    assert len(tensors_of([X, {"a": X, "b": torch.ones(1)}])) == 2


def test_tensors_die_with_the_last_who_holds_them() -> None:
    gc.disable()
    try:
        found = doubled({"a": [torch.ones(3)]})
        reference = weakref.ref(found["a"][0])
        del found
        assert reference() is None
    finally:
        gc.enable()
