"""Tests that device_assert calls in Inductor's kernels are read and evaluated with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plimsoll.torch.simulated.compiled.asserted import Assertions, UndecidedError

ROWS = """
def triton_poi_fused_embedding_0(in_ptr0, in_ptr1, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 24
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x1 = xindex // 8
    x0 = (xindex % 8)
    tmp0 = tl.load(in_ptr0 + (1 + x1), xmask, eviction_policy='evict_last')
    tmp1 = tl.full([XBLOCK], 10, tl.int32)
    tmp2 = tmp0 + tmp1
    tmp3 = tmp0 < 0
    tmp4 = tl.where(tmp3, tmp2, tmp0)
    tl.device_assert(((0 <= tmp4) & (tmp4 < 10)) | ~(xmask), "index out of bounds: 0 <= tmp4 < 10")
    tmp6 = tl.load(in_ptr1 + (x0 + 8*tmp4), xmask)
    tl.store(out_ptr0 + (xindex), tmp6, xmask)
"""


def failed(*indices: int | None, source: str = ROWS, kind: str = "int64") -> str | None:
    known = None if None in indices else np.array(indices, dtype=kind)
    arguments: dict[str, Any] = {"in_ptr0": known, "in_ptr1": None, "xnumel": 24}
    return Assertions(source).failed(arguments, lambda values: values)


def test_indices_within_bounds_pass() -> None:
    assert failed(0, 9, -10, 3) is None


@pytest.mark.parametrize("index", [10, -11])
def test_an_index_out_of_bounds_fails_with_the_kernels_text(index: int) -> None:
    seen = index if index > 0 else index + 10  # negative indices count from the end
    text = f"an index is {seen}: index out of bounds: 0 <= tmp4 < 10"
    assert failed(0, 1, index, 3) == text


def test_an_element_that_the_kernel_does_not_load_is_not_checked() -> None:
    assert failed(77, 1, 2, 3) is None  # the kernel begins at the second element
    assert failed(1, 1, 2, 3, 77) is None  # the kernel loads three elements


def test_indices_of_a_narrow_type_are_widened() -> None:
    wide = ROWS.replace("10, tl.int32", "256, tl.int32").replace("< 10", "< 256")
    assert failed(0, 255, 3, 128, source=wide, kind="uint8") is None


def test_unknown_indices_are_undecided() -> None:
    with pytest.raises(UndecidedError):
        failed(None)


def test_what_is_not_understood_is_undecided() -> None:
    with pytest.raises(UndecidedError):
        failed(0, 1, 2, 3, source=ROWS.replace("tmp2 = tmp0 + tmp1", "tmp2 = helper.of(tmp0)"))


def test_an_ignored_target_passes() -> None:
    source = ROWS.replace("tmp3 = tmp0 < 0", "tmp3 = tmp0 != -100").replace(
        "tl.where(tmp3, tmp2, tmp0)", "tl.where(tmp3, tmp0, tl.full([1], 0, tl.int64))"
    )
    assert failed(0, -100, 9, 3, source=source) is None
    assert failed(0, -1, 9, 3, source=source) is not None
