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

from plimsoll.recordings.analysis.lifetimes import Lifetimes
from plimsoll.recordings.analysis.lines import is_program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from plimsoll.recordings.analysis.stretches import Stretch
    from plimsoll.recordings.events import Frame

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


class BehaviourInTheMaking:
    """The passages of a history, which is taken in stretch by stretch.

    Args:
        frames: The frames of a stack by its number.
    """

    def __init__(self, frames: Callable[[int], list[Frame]]) -> None:
        self._frames = frames
        self._words: dict[int, int] = {}  # of stacks
        self._lives, self._lines = _Row(), _Row()
        self._has_stacks = False

    def add(self, stretch: Stretch) -> None:
        """Take in the next stretch."""
        began, lives = stretch.began, stretch.lives
        self._has_stacks = self._has_stacks or bool(began.stack.any())
        self._lives.add(began, lives.astype(np.uint64), lives >= 0)
        self._lines.add(began, self._of_stacks(began.stack), np.ones(len(began), dtype=bool))

    def made(self, line_of: Callable[[Lifetimes], NDArray[np.int64]]) -> Behaviour:
        """All passages.

        Args:
            line_of: Says of blocks the numbers of their lines.
        """
        lines = self._lines.passages(line_of) if self._has_stacks else None
        return Behaviour(self._lives.passages(line_of), lines)

    def _of_stacks(self, stacks: NDArray[np.uint32]) -> NDArray[np.uint64]:
        numbers, place = np.unique(stacks, return_inverse=True)
        words = [self._word(int(one)) for one in numbers]
        return np.array(words, dtype=np.uint64)[place]

    def _word(self, stack: int) -> int:
        if stack not in self._words:
            key = line_key(self._frames(stack)).encode()
            self._words[stack] = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest())
        return self._words[stack]


def line_key(frames: Sequence[Frame]) -> str:
    """A stack's source line, told the same on hosts whose folders differ."""
    for frame in frames:
        if is_program(frame):
            filename, line, function = frame
            return f"{filename.replace(chr(92), '/').rpartition('/')[2]}:{line} {function}"
    return ""


class _Row:
    """A row of words that goes by, and the passages in it with the least hashes so far."""

    def __init__(self) -> None:
        self._words = np.zeros(0, dtype=np.uint64)  # at the end, of passages that are not whole
        self._is_known = np.zeros(0, dtype=bool)
        self._blocks: Lifetimes | None = None
        self._hashes = np.zeros(0, dtype=np.uint64)
        self._last: Lifetimes | None = None  # of each passage, its last block

    def add(
        self, blocks: Lifetimes, words: NDArray[np.uint64], is_known: NDArray[np.bool_]
    ) -> None:
        """Take in the next words.

        How long a block lives that is never freed is not known, nor are its passages.
        """
        words = np.concatenate([self._words, words])
        is_known = np.concatenate([self._is_known, is_known])
        blocks = blocks if self._blocks is None else Lifetimes.join([self._blocks, blocks])
        count = max(len(words) - WORDS + 1, 0)
        hashed = np.zeros(count, dtype=np.uint64)
        for place in range(WORDS):
            hashed = (hashed ^ words[place : place + count]) * _ODD
            hashed ^= hashed >> _SHIFT
        unknown = np.concatenate([[0], np.cumsum(~is_known)])
        places = np.flatnonzero(unknown[WORDS : WORDS + count] == unknown[:count])
        last = blocks[places + WORDS - 1]
        if self._last is not None:
            last = Lifetimes.join([self._last, last])
        # Of the same passage the first one stays; and one more is kept than are wanted.
        hashes, index = np.unique(np.concatenate([self._hashes, hashed[places]]), return_index=True)
        self._hashes, self._last = hashes[: MOST_PASSAGES + 1], last[index[: MOST_PASSAGES + 1]]
        self._words, self._is_known = words[count:], is_known[count:]
        self._blocks = blocks[count:]

    def passages(self, line_of: Callable[[Lifetimes], NDArray[np.int64]]) -> Passages:
        """What there is of it."""
        last = Lifetimes.none(0) if self._last is None else self._last[:MOST_PASSAGES]
        is_cut = len(self._hashes) > MOST_PASSAGES
        return Passages(
            hashes=self._hashes[:MOST_PASSAGES],
            event=last.start,
            line=line_of(last).astype(np.int32),
            bytes=last.size.astype(np.int64),
            complete_below=int(self._hashes[MOST_PASSAGES]) if is_cut else 1 << 64,
        )
