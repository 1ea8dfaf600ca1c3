"""Computes the memory that FlashAttention 3's forward pass takes besides its output.

If FlashAttention 3 splits the keys into parts, each part has its own results. The kernels may also
need a schedule, which assigns tiles to thread blocks. The rules are those of hopper/flash_api.cpp,
heuristics.h and tile_size.h of flash-attn 3, as vLLM builds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_MOST_SPLITS = 128
_MOST_BATCHES = 992
"""For sequences of different lengths: the largest batch in which FlashAttention 3 splits keys."""
_CACHE_BYTES = 50 * 1024 * 1024
"""The size of the level 2 cache that FlashAttention 3 assumes."""
_WIDTHS = (64, 96, 128, 192, 256)


@dataclass(frozen=True)
class Shape:
    """The sizes that decide how the work of one call is divided.

    Attributes:
        batch: The number of sequences.
        rows: The number of query rows of a sequence, or of the longest sequence.
        key_rows: The number of key rows of a sequence, or of the longest sequence.
        heads: The number of heads of the queries.
        key_heads: The number of heads of the keys and values.
        width: The length of a row of queries and keys, in numbers.
        value_width: The length of a row of values, in numbers.
        item_bytes: The bytes of a number, 1 or 2.
        is_causal: Whether rows see no later keys.
        left: How many keys before its own position a row sees; -1 means all of them.
        right: How many keys after its own position a row sees; -1 means all of them.
        page_rows: The key rows of a page; 0 if keys are not paged.
        is_varlen: Whether sequences may differ in length.
        processors: The number of streaming multiprocessors.
        major: The first number of the compute capability.
    """

    batch: int
    rows: int
    key_rows: int
    heads: int
    key_heads: int
    width: int
    value_width: int
    item_bytes: int
    is_causal: bool
    left: int
    right: int
    page_rows: int
    is_varlen: bool
    processors: int
    major: int = 9

    @property
    def window(self) -> tuple[bool, int, int]:
        """Returns is_causal, left and right, as FlashAttention 3 simplifies them."""
        left = -1 if self.left >= self.key_rows - 1 else self.left
        right = -1 if self.right >= self.rows - 1 else self.right
        is_causal = self.is_causal
        if self.rows == 1 and left == right == -1:
            narrow_or_wide = self.width <= 64 or self.width > 128
            is_causal = is_causal and not (narrow_or_wide or not self.page_rows)
        right = 0 if is_causal else right
        return left < 0 and right == 0, left, right

    @property
    def is_local(self) -> bool:
        """Returns whether rows see only a window of keys; a causal mask alone is no window."""
        is_causal, left, right = self.window
        return max(left, right) >= 0 and not is_causal

    @property
    def packed_rows(self) -> int:
        """The number of query rows of all heads that share a key head."""
        return self.rows * (self.heads // self.key_heads)

    def blocks(self, *, copies_pages: bool) -> tuple[int, int]:
        """Returns the numbers of query rows and key rows that a thread block processes at a time.

        Args:
            copies_pages: Whether threads, and not the TMA unit, copy the pages of keys.
        """
        width = next((each for each in _WIDTHS if self.width <= each), _WIDTHS[-1])
        value_width = max(self.value_width, width) if self.value_width > width else width
        is_causal, is_local = self.window[0], self.is_local
        if self.major < 9:
            return _blocks_of_ampere(width, is_local, bool(self.page_rows), self.is_varlen)
        is_small = width in (64, 128) and not is_local and self.packed_rows <= 64
        if self.item_bytes == 1:
            return _blocks_of_bytes(width, is_local, is_small)
        is_short = is_causal or is_local or copies_pages
        if width == 64:
            if value_width > 256:
                return 64, 64
            if value_width > 192:
                return 128, 96
            if is_small:
                return 64, 192
            return 192, 128 if is_causal else 160 if is_local or copies_pages else 192
        if width == 96:
            return 192, 128 if is_local or copies_pages else 144
        if width == 128:
            return (64, 128 if is_short else 176) if is_small else (128, 128 if is_short else 160)
        if width == 192:
            return 128, 96 if copies_pages or is_local or self.value_width > 128 else 128
        return 128, 64 if is_local else 80

    @property
    def copies_pages(self) -> bool:
        """Returns whether threads, and not the TMA unit, copy the pages of keys."""
        if not self.page_rows:
            return False
        if self.major < 9 or self.is_local:
            return True
        rows, key_rows = self.blocks(copies_pages=False)
        return self.page_rows % key_rows != 0 or self.packed_rows <= rows


def splits(shape: Shape, asked: int) -> int:
    """Returns the number of parts into which the keys are split; each part has its own results.

    Args:
        shape: The sizes of the call.
        asked: The number that the caller requests; 0 lets FlashAttention 3 choose.
    """
    chosen = asked if asked > 0 else _chosen_splits(shape)
    return 1 if shape.is_varlen and shape.batch > _MOST_BATCHES else chosen


def schedule_numbers(shape: Shape, asked: int) -> int:
    """Returns the number of 32-bit numbers in a call's schedule; 0 if it has no schedule."""
    count = splits(shape, asked)
    is_causal, is_local = shape.window[0], shape.is_local
    counts_tiles = (
        ((is_causal or is_local) and count == 1) or shape.is_varlen
        if shape.major >= 9
        else (is_causal and not shape.is_varlen) or (shape.is_varlen and count > 1)
    )
    if not counts_tiles and not shape.is_varlen:
        return 0
    splits_by_length = shape.is_varlen and shape.batch <= _MOST_BATCHES and count > 1
    of_each = sum((shape.is_varlen, splits_by_length, is_causal or is_local))
    return int(counts_tiles) + -(-shape.batch // 4) * 4 * of_each


def take_besides(
    query: Any, shape: Shape, lines: tuple[int, ...], asked: int, *, is_scheduled: bool
) -> tuple[list[Any], Any]:
    """Allocates the memory of a call, except its output.

    Args:
        query: The queries, on the card.
        shape: The sizes of the call.
        lines: The shape of a tensor with one number for each row and head.
        asked: The requested number of parts, as in `splits`.
        is_scheduled: Whether the caller has made the schedule.

    Returns:
        A list of three tensors, and the schedule. The first tensor has the log-sum-exp of each row.
        The second tensor has the output of each part, and the third has the log-sum-exp of each
        part. The second and the third are empty if there is only one part.
    """
    import torch

    numbers = 0 if is_scheduled else schedule_numbers(shape, asked)
    logarithms = query.new_empty(lines, dtype=torch.float32)
    schedule = query.new_empty(numbers, dtype=torch.int32)
    count = splits(shape, asked)
    sizes = [(count, *lines, shape.value_width), (count, *lines)] if count > 1 else [(0,), (0,)]
    parts = [query.new_empty(size, dtype=torch.float32) for size in sizes]
    return [logarithms, *parts], schedule


def _chosen_splits(shape: Shape) -> int:
    row_block, key_block = shape.blocks(copies_pages=shape.copies_pages)
    is_causal, left, right = shape.window
    loaded = shape.key_rows
    if shape.is_local:
        left = shape.key_rows - 1 if left < 0 else left
        right = shape.rows - 1 if right < 0 else right
        loaded = max(0, min(loaded, left + right + 1 + row_block))
    key_blocks, row_blocks = -(-loaded // key_block), -(-shape.packed_rows // row_block)
    key_bytes = shape.key_rows * (shape.width + shape.value_width) * shape.item_bytes
    # If sequences differ in length, the kernels later choose how to split each sequence. Then this
    # function returns only an upper bound, computed as if the batch were a single long sequence.
    total = (1 if shape.is_varlen else shape.batch) * shape.key_heads * row_blocks
    if total >= 0.8 * shape.processors:
        sees_all = not is_causal and not shape.is_local
        if key_bytes > _CACHE_BYTES and row_blocks >= 2 * shape.processors and sees_all:
            return min(-(-key_bytes // _CACHE_BYTES), _MOST_SPLITS)
        return 1
    if key_blocks <= 4 or total == 0:
        return 1

    def efficiency(count: int) -> float:
        waves = total * count / shape.processors
        return waves / -(-total * count // shape.processors)

    counts = range(1, min(_MOST_SPLITS, shape.processors, key_blocks) + 1)
    best = max(map(efficiency, counts))
    return next(count for count in counts if efficiency(count) >= 0.85 * best)


def _blocks_of_bytes(width: int, is_local: bool, is_small: bool) -> tuple[int, int]:
    """Returns the result of `blocks` if queries, keys and values are 8-bit numbers."""
    if is_small:
        return 64, 128 if width <= 96 else 96
    if width <= 96:
        return (192 if width == 64 else 128), 128
    if width == 128:
        return 128, 192
    return 128, 96 if width == 192 else 64 if is_local else 128


def _blocks_of_ampere(width: int, is_local: bool, is_paged: bool, splits: bool) -> tuple[int, int]:
    """Returns the result of `blocks` for cards before compute capability 9."""
    if width == 64:
        return 128, 80 if splits else 96 if is_local else 112
    if width == 96:
        return 128, 48 if splits or is_local else 64
    if width == 128:
        return 128, (96 if is_local else 112) if splits else 48 if is_local else 64
    if width == 192:
        return 128, 64 if is_local or splits or is_paged else 96
    return 128, 64 if splits or is_local else 96
