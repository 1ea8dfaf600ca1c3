"""Stores messages of any size in a job's store.

PyTorch's TCPStore refuses a value of more than 8 MiB (`MAX_PAYLOAD_LEN` of
torch/csrc/distributed/c10d/TCPStoreLibUvBackend.cpp). So a message is stored in pieces of at most
`PIECE_BYTES`. The first piece contains the number of the other pieces. It is stored last, under the
message's key, and the other pieces have keys of their own. So if the message's key exists, the
whole message exists.
"""

from __future__ import annotations

import struct
from typing import Any

PIECE_BYTES = 4 << 20
_COUNT = struct.Struct("=I")


def post(store: Any, key: str, message: bytes) -> int:
    """Stores a message. Returns the number of pieces after the first."""
    rest = range(PIECE_BYTES, len(message), PIECE_BYTES)
    for number, start in enumerate(rest):
        store.set(_key(key, number), message[start : start + PIECE_BYTES])
    store.set(key, _COUNT.pack(len(rest)) + message[:PIECE_BYTES])
    return len(rest)


def read(store: Any, keys: list[str]) -> list[tuple[bytes, int]]:
    """Returns the message under each key, and the number of the message's pieces after the first.

    All keys must exist.
    """
    # Each key is requested separately: an answer with many first pieces could be too large.
    return [_joined(store, key, store.get(key)) for key in keys]


def remove(store: Any, key: str, pieces: int) -> None:
    """Removes a message from the store: its first piece, and the `pieces` pieces after it."""
    store.delete_key(key)
    for number in range(pieces):
        store.delete_key(_key(key, number))


def _joined(store: Any, key: str, first: bytes) -> tuple[bytes, int]:
    (count,) = _COUNT.unpack_from(first)
    rest = [store.get(_key(key, number)) for number in range(count)]
    return b"".join([first[_COUNT.size :], *rest]), count


def _key(key: str, number: int) -> str:
    return f"{key}#{number}"
