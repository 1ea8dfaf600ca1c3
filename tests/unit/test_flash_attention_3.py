"""Compares FlashAttention 3's splits and schedules with cases computed by hand."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from plimsoll.torch.simulated.libraries.flash_attention_3 import Shape, schedule_numbers, splits

DECODING = Shape(
    batch=1,
    rows=1,
    key_rows=8192,
    heads=32,
    key_heads=8,
    width=128,
    value_width=128,
    item_bytes=2,
    is_causal=True,
    left=-1,
    right=-1,
    page_rows=16,
    is_varlen=True,
    processors=132,
)
"""One new token against an 8B model's cache, on an H100."""
TRAINING = replace(DECODING, batch=4, rows=2048, key_rows=2048, page_rows=0, is_varlen=False)

sizes = st.integers(1, 1 << 15)
shapes = st.builds(
    Shape,
    batch=st.integers(1, 2000),
    rows=sizes,
    key_rows=sizes,
    heads=st.sampled_from([8, 32]),
    key_heads=st.sampled_from([1, 8]),
    width=st.integers(8, 256),
    value_width=st.integers(8, 512),
    item_bytes=st.sampled_from([1, 2]),
    is_causal=st.booleans(),
    left=st.integers(-1, 4096),
    right=st.integers(-1, 4096),
    page_rows=st.sampled_from([0, 16, 64, 256]),
    is_varlen=st.booleans(),
    processors=st.sampled_from([108, 132]),
    major=st.sampled_from([8, 9]),
)


@given(shapes, st.integers(0, 40))
def test_keys_are_split_into_one_part_or_more(shape: Shape, asked: int) -> None:
    count = splits(shape, asked)
    assert 1 <= count <= max(asked, 128)
    if asked and not shape.is_varlen:
        assert count == asked


@given(shapes, st.integers(0, 40))
def test_sequences_of_a_large_batch_are_never_split_by_their_lengths(
    shape: Shape, asked: int
) -> None:
    large = replace(shape, batch=max(shape.batch, 993), is_varlen=True)
    assert splits(large, asked) == 1


@given(shapes)
def test_one_part_is_enough_where_blocks_of_rows_fill_the_card(shape: Shape) -> None:
    """Gives each processor 192 rows. A block has at most 192 rows, so no processor is idle.

    With a causal mask, FlashAttention 3 does not split keys to make them fit into the L2 cache.
    """
    filling = replace(
        shape, rows=192 * shape.processors, is_causal=True, left=-1, right=-1, key_heads=8
    )
    assert splits(filling, 0) == 1


@given(shapes, st.integers(0, 40))
def test_a_schedule_has_vectors_of_four_and_a_counter(shape: Shape, asked: int) -> None:
    count = schedule_numbers(shape, asked)
    assert count % 4 in (0, 1)
    if shape.is_varlen:
        assert count >= shape.batch
    else:
        assert count <= 1 + -(-shape.batch // 4) * 4


def test_one_new_row_is_split_until_the_card_is_nearly_full() -> None:
    """Splits the 8 blocks, one for each key head, to keep at least 85 % of 132 processors busy.

    15 splits keep 120 processors busy; 14 splits would keep 112 busy, which is less than 85 %.
    """
    assert splits(DECODING, 0) == 15
    # The schedule has one counter, and three numbers (length, splits, order) for each sequence. The
    # number of sequences is rounded up to a multiple of 4.
    assert schedule_numbers(DECODING, 0) == 1 + 3 * 4


def test_a_batch_of_several_lengths_is_split_as_its_longest_sequence() -> None:
    assert splits(replace(DECODING, batch=200), 0) == 15
    # 200 sequences with 8 key heads are 1600 blocks, which fill the card
    assert splits(replace(DECODING, batch=200, is_varlen=False), 0) == 1
    assert schedule_numbers(replace(DECODING, batch=201), 0) == 1 + 3 * 204
    assert schedule_numbers(replace(DECODING, batch=1000), 0) == 1 + 2 * 1000


def test_few_blocks_of_keys_are_not_split() -> None:
    """A block has 128 key rows, so 512 rows are four blocks: too few to split."""
    assert splits(replace(DECODING, key_rows=512), 0) == 1
    assert splits(replace(DECODING, key_rows=513), 0) == 5
    assert splits(replace(DECODING, key_rows=512), 3) == 3


def test_a_window_bounds_the_keys_that_are_split() -> None:
    """A row sees 128 keys. For 128 rows, 256 keys are loaded: two blocks, too few to split."""
    assert splits(replace(DECODING, is_causal=False, left=127, right=0), 0) == 1


def test_training_is_not_split() -> None:
    """The card runs fewer blocks at once than 64 row blocks x 8 key heads x 4 sequences."""
    assert splits(TRAINING, 0) == 1
    assert schedule_numbers(TRAINING, 0) == 1 + 4
    assert schedule_numbers(TRAINING, 2) == 0  # no schedule: blocks keep their order
    assert schedule_numbers(replace(TRAINING, is_causal=False), 0) == 0


def test_keys_of_more_than_the_cache_are_split_by_its_size() -> None:
    """300,000 key rows of 512 bytes are 146.5 MiB, three times the 50 MiB of the L2 cache."""
    long = replace(TRAINING, batch=1, rows=16896, key_rows=300_000, is_causal=False)
    assert splits(long, 0) == 3
    assert splits(replace(long, is_causal=True), 0) == 1
    # 1024 rows make 32 row blocks. FlashAttention 3 splits keys by the cache's size only if there
    # are at least 264 row blocks.
    assert splits(replace(long, rows=1024), 0) == 1
