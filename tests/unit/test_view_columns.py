"""Tests packing columns of integers into a page's text: unpacking must return the same numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll import InputError
from plimsoll.page.columns import Code, pack_column
from tests.unit.packed_columns import unpack_column

NUMBERS = st.lists(st.integers(-(2**51), 2**51), max_size=50)


@given(NUMBERS, st.sampled_from(["plain", "delta"]))
def test_unpacking_is_the_inverse_of_packing(numbers: list[int], code: Code) -> None:
    packed = json.loads(json.dumps(pack_column(np.array(numbers, dtype=np.int64), code)))
    assert unpack_column(packed).tolist() == numbers
    assert packed["least"] == min(numbers, default=0)
    assert packed["most"] == max(numbers, default=0)


def test_a_constant_column_takes_no_room() -> None:
    assert pack_column(np.full(1000, 7))["data"] == ""


def test_multiples_are_packed_as_what_they_are_multiples_of() -> None:
    packed = pack_column(np.arange(200) * 2**21)
    assert (packed["planes"], packed["step"]) == (1, 2**21)


def test_a_number_that_a_page_cannot_hold_is_refused() -> None:
    with pytest.raises(InputError, match="more than any machine has"):
        pack_column(np.array([2**63], dtype=np.uint64))
