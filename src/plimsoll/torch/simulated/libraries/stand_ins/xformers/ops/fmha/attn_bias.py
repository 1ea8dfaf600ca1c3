"""The masks of xformers.

The code follows xformers/ops/fmha/attn_bias.py of xformers 0.0.33.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


class AttentionBias:
    """The base class of masks. The tensor form of a mask is added to the attention scores."""

    is_causal = False


class LowerTriangularMask(AttentionBias):
    """A causal mask: each query row sees only the keys up to the row's own position."""

    is_causal = True

    def materialize(self, shape: Any, dtype: Any = torch.float32, device: Any = "cpu") -> Any:
        """Returns the mask as a tensor that can be added to the scores."""
        return torch.full(shape, float("-inf"), dtype=dtype, device=device).triu(1)


class LowerTriangularFromBottomRightMask(LowerTriangularMask):
    """A causal mask: the last query row sees all keys.

    Each earlier row sees one key fewer than the row after it.
    """


@dataclass
class _SeqLenInfo:
    seqstart: Any
    max_seqlen: int
    seqstart_py: list[int]

    @classmethod
    def from_seqlens(cls, seqlens: Any) -> _SeqLenInfo:
        starts = [0]
        for length in seqlens:
            starts.append(starts[-1] + length)
        return cls(torch.tensor(starts, dtype=torch.int32), max(seqlens, default=0), starts)

    def to(self, device: Any) -> None:
        self.seqstart = self.seqstart.to(device, non_blocking=True)


@dataclass
class BlockDiagonalMask(AttentionBias):
    """A mask for packed sequences: each row sees only its own sequence."""

    q_seqinfo: _SeqLenInfo
    k_seqinfo: _SeqLenInfo
    _batch_sizes: Any = None

    @classmethod
    def from_seqlens(
        cls,
        q_seqlen: Any,
        kv_seqlen: Any = None,
        *,
        device: Any = None,
    ) -> BlockDiagonalMask:
        """Makes a mask from the lengths of the sequences."""
        of_queries = _SeqLenInfo.from_seqlens(q_seqlen)
        of_keys = of_queries if kv_seqlen is None else _SeqLenInfo.from_seqlens(kv_seqlen)
        if device is not None:
            of_queries.to(device)
            of_keys.to(device)
        return cls(of_queries, of_keys)

    @classmethod
    def from_tensor_list(cls, tensors: Any) -> Any:
        """Packs sequences into one tensor. Returns their mask and the tensor."""
        sizes = [tensor.shape[0] for tensor in tensors]
        lengths = [tensor.shape[1] for tensor in tensors for _ in range(tensor.shape[0])]
        mask = cls.from_seqlens(lengths)
        mask._batch_sizes = sizes
        rows = [tensor.reshape(1, -1, *tensor.shape[2:]) for tensor in tensors]
        return mask, torch.cat(rows, dim=1)

    def split(self, tensor: Any) -> Any:
        """Splits a packed tensor into the tensors that `from_tensor_list` packed.

        If `from_seqlens` made the mask, each part is one sequence.
        """
        starts = self.q_seqinfo.seqstart_py
        sizes = self._batch_sizes or [1] * (len(starts) - 1)
        parts, first = [], 0
        for size in sizes:
            part = tensor[:, starts[first] : starts[first + size]]
            parts.append(part.reshape(size, -1, *tensor.shape[2:]))
            first += size
        return parts

    def make_causal(self) -> BlockDiagonalCausalMask:
        """Returns the causal form of the mask."""
        return BlockDiagonalCausalMask(self.q_seqinfo, self.k_seqinfo, self._batch_sizes)


class BlockDiagonalCausalMask(BlockDiagonalMask):
    """A causal mask for packed sequences: a row sees only its own sequence, up to itself."""

    is_causal = True
