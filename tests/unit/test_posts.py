"""Tests messages of any size in a store that refuses large values."""

from __future__ import annotations

import pytest

from plimsoll.torch.simulated.ranks import posts


class SmallStore:
    """A store that takes values up to 8 MiB, like PyTorch's TCPStore."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        if len(value) > 8 << 20:
            raise RuntimeError("Invalid payload size")
        self.values[key] = value

    def get(self, key: str) -> bytes:
        return self.values[key]

    def delete_key(self, key: str) -> bool:
        return self.values.pop(key, None) is not None


PIECE = posts.PIECE_BYTES


@pytest.mark.parametrize("size", [0, 1, PIECE, PIECE + 1, 2 * PIECE, (9 << 20) + 3])
def test_a_message_of_any_size_arrives_and_goes_as_a_whole(size: int) -> None:
    store, message = SmallStore(), bytes(range(251)) * (size // 251 + 1)
    message = message[:size]
    pieces = posts.post(store, "3/1", message)
    assert len(store.values) == pieces + 1
    assert posts.read(store, ["3/1"]) == [(message, pieces)]
    posts.remove(store, "3/1", pieces)
    assert not store.values


def test_the_key_of_a_message_comes_after_all_its_pieces() -> None:
    store = SmallStore()
    posts.post(store, "0/0", bytes(3 * PIECE))
    assert list(store.values)[-1] == "0/0"
