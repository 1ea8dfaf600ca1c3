"""What a rank does, whatever the sizes: which allocations follow each other.

A recording becomes rows of words, one word for each allocation: the source line that asked for it,
and its life, counted in allocations. Both stay the same where a rank has another shard of the same
tensors, longer sequences or another clock. Of a row the passages are kept, a few words each, every
one once: so repeated steps count once, a recording that begins later or ends earlier has some of
the same passages, and a step whose allocations come in another order has passages that no other
rank has.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from plimsoll.analysis import is_program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from plimsoll.analysis import Lifetimes
    from plimsoll.recordings import Frame

WORDS = 8
"""Of a passage."""
MOST_PASSAGES = 8192
"""Of a row; of more, those with the least hashes are kept, so that ranks keep the same ones."""

_ODD = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)


@dataclass(frozen=True)
class Passages:
    """The passages of one row of words, and where each first comes: its last allocation there.

    Attributes:
        hashes: Of each, in order. uint64.
        event: The event of that allocation. int64.
        line: The number of its line. int32.
        bytes: What it asked for. int64.
        complete_below: All passages with a hash below this are there.
    """

    hashes: NDArray[np.uint64]
    event: NDArray[np.int64]
    line: NDArray[np.int32]
    bytes: NDArray[np.int64]
    complete_below: int


@dataclass(frozen=True)
class Behaviour:
    """What one rank does.

    Attributes:
        lives: The passages of lives.
        lines: The passages of source lines; None where there are no call stacks.
    """

    lives: Passages
    lines: Passages | None


def behaviour_of(
    lifetimes: Lifetimes, line: NDArray[np.int64], frames: Callable[[int], list[Frame]]
) -> Behaviour:
    """The passages of a history.

    Args:
        lifetimes: Its blocks, without those from before its first event.
        line: Of each, the number of its line.
        frames: The frames of a stack by its number.
    """
    lives = np.searchsorted(lifetimes.start, lifetimes.end) - np.arange(len(lifetimes))
    is_known = lifetimes.end < lifetimes.event_count
    lines = None
    if lifetimes.stack.any():
        words = _lines(lifetimes.stack, frames)
        lines = _passages(lifetimes, line, words, np.ones_like(is_known))
    return Behaviour(_passages(lifetimes, line, lives.astype(np.uint64), is_known), lines)


def line_key(frames: Sequence[Frame]) -> str:
    """A stack's source line, told the same on hosts whose folders differ."""
    for frame in frames:
        if is_program(frame):
            filename, line, function = frame
            return f"{filename.replace(chr(92), '/').rpartition('/')[2]}:{line} {function}"
    return ""


def _lines(stacks: NDArray[np.uint32], frames: Callable[[int], list[Frame]]) -> NDArray[np.uint64]:
    numbers, place = np.unique(stacks, return_inverse=True)
    hashed = [
        int.from_bytes(hashlib.blake2b(line_key(frames(int(one))).encode(), digest_size=8).digest())
        for one in numbers
    ]
    return np.array(hashed, dtype=np.uint64)[place]


def _passages(
    lifetimes: Lifetimes,
    line: NDArray[np.int64],
    words: NDArray[np.uint64],
    is_known: NDArray[np.bool_],
) -> Passages:
    """Those of a row. How long a block lives that is never freed is not known, nor its passages."""
    count = max(len(words) - WORDS + 1, 0)
    hashed = np.zeros(count, dtype=np.uint64)
    for place in range(WORDS):
        hashed = (hashed ^ words[place : place + count]) * _ODD
        hashed ^= hashed >> _SHIFT
    unknown = np.concatenate([[0], np.cumsum(~is_known)])
    places = np.flatnonzero(unknown[WORDS : WORDS + count] == unknown[:count])
    hashes, index = np.unique(hashed[places], return_index=True)
    complete = 1 << 64
    if len(hashes) > MOST_PASSAGES:
        complete = int(hashes[MOST_PASSAGES])
        hashes, index = hashes[:MOST_PASSAGES], index[:MOST_PASSAGES]
    last = places[index] + WORDS - 1
    return Passages(
        hashes=hashes,
        event=lifetimes.start[last],
        line=line[last].astype(np.int32),
        bytes=lifetimes.size[last].astype(np.int64),
        complete_below=complete,
    )
