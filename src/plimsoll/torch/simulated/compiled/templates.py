"""Finds the matrix product in a kernel that PyTorch's compiler made from one of its templates.

The kernel's source names the sizes of a block (`BLOCK_M: tl.constexpr = 128`) and the operands.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plimsoll.torch.simulated.chips import Chip

_CONSTANT = re.compile(r"^    (\w+) : tl\.constexpr = (\w+)", re.MULTILINE)
_ALONG_TERMS = (
    re.compile(r"^    stride_ak = 1$", re.MULTILINE),
    re.compile(r"^    stride_bk = 1$", re.MULTILINE),
)
_TILE = ("BLOCK_M", "BLOCK_N", "BLOCK_K")
OPERANDS = {"arg_A": "arg_B", "arg_X": "arg_W"}
"""Maps the first operand's name to the second's, in matrix products and in convolutions."""
_RESULTS = ("out_ptr", "in_out_ptr")
"""The prefixes of the result's name. In a fused kernel, a number follows the prefix."""
_BITS = re.compile(r"\*(?:fp|bf|u|i)(\d+)")
_ROWS_OF_WARPGROUP = 64


@dataclass(frozen=True)
class Template:
    """A kernel whose blocks compute `rows` x `columns` results, adding `terms` products at a time.

    Attributes:
        buffers: The number of buffers into which operands are loaded ahead of their use.
        rounds_floats: Whether floats are rounded to tf32.
        is_along_terms: Whether both operands are contiguous in the dimension that is summed over.
    """

    rows: int
    columns: int
    terms: int
    buffers: int
    warps: int
    rounds_floats: bool
    is_along_terms: bool

    @property
    def tile(self) -> list[int]:
        """Returns the tile in the form that `torch.ops.plimsoll.launch` takes."""
        sizes = [self.rows, self.columns, self.terms, self.buffers, self.warps]
        return [*sizes, int(self.rounds_floats), int(self.is_along_terms)]

    def shared_bytes(self, item_bytes: int, chip: Chip) -> int:
        """Returns the bytes of on-chip shared memory that a block needs for its operands.

        Each number of an operand takes `item_bytes`.

        On Hopper, groups of four warps compute a block of at least 64 rows. They read both operands
        from shared memory, which holds all buffers. For any other block, registers replace one of
        the buffers.

        Observed with Triton 3.6 on an H200, where Triton refused tiles that were too large.
        """
        by_group = chip.multiplies_by_warp_groups and self.rows >= _ROWS_OF_WARPGROUP
        buffers = self.buffers if by_group else max(1, self.buffers - 1)
        return buffers * self.terms * (self.rows + self.columns) * item_bytes


def template_of(source: str, options: Any) -> Template | None:
    """Returns the template from which a kernel was made; None if plimsoll knows none."""
    constants = dict(_CONSTANT.findall(source))
    if not all(constants.get(name, "").isdigit() for name in _TILE):
        return None
    rows, columns, terms = (int(constants[name]) for name in _TILE)
    rounds = constants.get("ALLOW_TF32") == "True"
    along = all(pattern.search(source) for pattern in _ALONG_TERMS)
    return Template(rows, columns, terms, options.num_stages, options.num_warps, rounds, along)


def bytes_of(kind: str) -> int:
    """Returns the size of the numbers that a pointer of this type points to: 2 for "*bf16"."""
    if "fp8" in kind:
        return 1
    found = _BITS.match(kind)
    return max(1, int(found[1]) // 8) if found else 1


def multiplied(named: dict[str, Any]) -> tuple[list[float], Any] | None:
    """Returns the size of the matrix product that a launch computes. Tensors may be transposed.

    Args:
        named: The arguments by their names.

    Returns:
        The numbers of matrices, rows, columns and terms, and the dtype; None if no operands are
        found.
    """
    results = [name for name in named if name.startswith(_RESULTS)]
    for first, second in OPERANDS.items():
        tensors = [named.get(name) for name in (first, second, *results[:1])]
        if len(tensors) < len(("operand", "operand", "result")):
            continue
        if any(getattr(tensor, "shape", None) is None for tensor in tensors):
            continue
        one, other, result = (tuple(tensor.shape) for tensor in tensors if tensor is not None)
        sizes = [max(1, prod(shape)) for shape in (one, other, result)]
        kind = named[first].dtype
        if first == "arg_X":  # a convolution: `other[0]` is the number of output channels
            columns = other[0]
            return [1, sizes[2] / columns, columns, sizes[1] / columns], kind
        matrices = one[0] if len(one) > len(("rows", "terms")) else 1
        a, b, c = (size / matrices for size in sizes)
        return [matrices, (a * c / b) ** 0.5, (b * c / a) ** 0.5, (a * b / c) ** 0.5], kind
    return None
