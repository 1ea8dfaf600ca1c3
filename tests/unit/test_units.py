from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll import InputError
from plimsoll.base.units import (
    GiB,
    KiB,
    MiB,
    TiB,
    format_count,
    format_size,
    parse_memory,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GiB", 24 * GiB),
        ("512 MiB", 512 * MiB),
        ("  7.5G ", 15 * GiB // 2),
        ("1K", KiB),
        ("2t", 2 * TiB),
        ("80GB", 80 * 10**9),
        ("3mb", 3 * 10**6),
        ("1TB", 10**12),
        ("20 kB", 20_000),
        ("1048576", MiB),
        ("2000000.9", 2_000_000),
        ("1 bytes", 1),
        ("1 byte", 1),
        ("4096b", 4096),
        (123, 123),
    ],
)
def test_a_size_is_read_in_the_units_people_write(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1GiB", "1 XiB", "1e9", "1.GiB", ".5GiB", "1,5G", "one"]
)
def test_what_is_not_a_size_is_named(text: str) -> None:
    with pytest.raises(InputError, match="not a size"):
        parse_size(text)


@pytest.mark.parametrize("size", ["0", "0.0GiB", "0.4 bytes", 0, -1])
def test_a_size_is_above_zero(size: str | int) -> None:
    with pytest.raises(InputError, match="above zero"):
        parse_size(size)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("24", "24GiB"),
        (" 6 ", "6GiB"),
        ("7.5", "7.5GiB"),
        ("0.4", "0.4GiB"),
        ("8192", "8192MiB"),
        ("262143", "262143MiB"),
        ("1048575", "1048575KiB"),
    ],
)
def test_text_without_a_unit_is_too_small_to_be_meant_as_bytes(text: str, meant: str) -> None:
    with pytest.raises(InputError, match=f"'{text.strip()}' has no unit.*did you mean {meant}"):
        parse_size(text)
    with pytest.raises(InputError, match=f"did you mean {meant}"):
        parse_memory(text)


def test_a_memory_has_a_mebibyte_at_least() -> None:
    assert parse_memory(MiB) == parse_memory("1MiB") == MiB
    with pytest.raises(InputError, match="6 bytes is no size of memory; did you mean 6GiB"):
        parse_memory(6)
    with pytest.raises(InputError, match=r"512\.00 KiB is no size of memory, which is at least"):
        parse_memory("512K")
    with pytest.raises(InputError, match="above zero"):
        parse_memory(0)


@pytest.mark.parametrize("size", ["1048576TiB", 2**60, "9" * 5000, "9" * 400 + ".5G"])
def test_a_size_that_no_machine_has_is_refused(size: str | int) -> None:
    with pytest.raises(InputError, match="more than any machine has"):
        parse_size(size)


@given(st.text(max_size=12) | st.from_regex(r"\s*\d{1,30}(\.\d{1,5})?\s*[kmgtbi]{0,3}\s*"))
def test_any_text_is_a_size_or_an_input_error(text: str) -> None:
    try:
        size = parse_size(text)
    except InputError:
        return
    assert 0 < size < 2**60


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (512, "512 bytes"),
        (KiB, "1.00 KiB"),
        (KiB + 512, "1.50 KiB"),
        (MiB - 1, "1.00 MiB"),
        (MiB, "1.00 MiB"),
        (20 * MiB, "20.00 MiB"),
        (GiB - 6 * MiB, "1018.00 MiB"),
        (GiB - 1, "1.00 GiB"),
        (GiB, "1.00 GiB"),
        (85017493504, "79.18 GiB"),
        (TiB - 1, "1.00 TiB"),
        (3 * TiB, "3.00 TiB"),
    ],
)
def test_a_size_is_shown_in_the_largest_unit_that_it_has_one_of(size: int, text: str) -> None:
    assert format_size(size) == text


def test_counts_agree_with_their_words() -> None:
    assert format_count(1, "step") == "1 step"
    assert format_count(0, "step") == "0 steps"
    assert format_count(1234, "process", "processes") == "1,234 processes"


@given(st.integers(1, 2**59))
def test_what_is_shown_can_be_read_back(size: int) -> None:
    error = abs(parse_size(format_size(size)) - size)
    assert error <= 0.005 * size + 1  # rounded to two decimals, and to whole bytes
