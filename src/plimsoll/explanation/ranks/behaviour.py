"""Describes a rank's behaviour, that is, the order of its allocations, independent of their sizes.

A recording becomes two rows of words, with one word for each allocation in each row. In one row the
word is the source line that requested the allocation; in the other it is the allocation's lifetime,
counted in allocations. Both stay the same if a rank has another shard of the same tensors, longer
sequences or another clock. A *passage* is `WORDS` consecutive words; each distinct passage is kept
once. So repeated steps count once, and a recording that begins later or ends earlier shares most
passages with the other recordings. A step with an unusual order of allocations has passages that
no other rank has.
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
"""The number of words in a passage."""
MOST_PASSAGES = 8192
"""The maximum number of passages that are kept of one row.

If a row has more, only those with the smallest hashes are kept. All ranks use this rule, so that
they keep the same passages.
"""

_ODD = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)


@dataclass(frozen=True)
class Passages:
    """The distinct passages of one row.

    Attributes:
        hashes: The hash of each passage, sorted. uint64.
        event: The event of the last allocation in each passage's first occurrence. int64.
        line: The source line of that allocation, as an index into `RankSummary.names`. int32.
        bytes: The size of that allocation. int64.
        complete_below: A bound for hashes. Every passage of the row whose hash is below this bound
            is included.
    """

    hashes: NDArray[np.uint64]
    event: NDArray[np.int64]
    line: NDArray[np.int32]
    bytes: NDArray[np.int64]
    complete_below: int


@dataclass(frozen=True)
class Behaviour:
    """The behaviour of one rank.

    Attributes:
        lives: The passages whose words are lifetimes.
        lines: The passages whose words are source lines; None without call stacks.
    """

    lives: Passages
    lines: Passages | None


class BehaviourInTheMaking:
    """Collects the passages of a history, one stretch of events after another.

    Args:
        frames: A function that returns the frames of a stack, given its number.
    """

    def __init__(self, frames: Callable[[int], list[Frame]]) -> None:
        self._frames = frames
        self._words: dict[int, int] = {}  # the word of each stack
        self._lives, self._lines = _Row(), _Row()
        self._has_stacks = False

    def add(self, stretch: Stretch) -> None:
        """Adds the next stretch of events."""
        began, lives = stretch.began, stretch.lives
        self._has_stacks = self._has_stacks or bool(began.stack.any())
        self._lives.add(began, lives.astype(np.uint64), lives >= 0)
        self._lines.add(began, self._of_stacks(began.stack), np.ones(len(began), dtype=bool))

    def made(self, line_of: Callable[[Lifetimes], NDArray[np.int64]]) -> Behaviour:
        """Returns the rank's behaviour in all stretches added so far.

        Args:
            line_of: A function that returns the source line of each block, as an index into
                `RankSummary.names`.
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
    """Returns a stack's source line without folders, which may differ between hosts."""
    for frame in frames:
        if is_program(frame):
            filename, line, function = frame
            return f"{filename.replace(chr(92), '/').rpartition('/')[2]}:{line} {function}"
    return ""


class _Row:
    """A row of words that grows by `add`.

    Only the passages whose hashes are the smallest so far are kept.
    """

    def __init__(self) -> None:
        self._words = np.zeros(0, dtype=np.uint64)  # the words of passages not complete yet
        self._is_known = np.zeros(0, dtype=bool)
        self._blocks: Lifetimes | None = None
        self._hashes = np.zeros(0, dtype=np.uint64)
        self._last: Lifetimes | None = None  # for each passage, its last block

    def add(
        self, blocks: Lifetimes, words: NDArray[np.uint64], is_known: NDArray[np.bool_]
    ) -> None:
        """Adds the next words of the row.

        A block that is never freed has no known lifetime, so passages with its word are left out.
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
        # `unique` keeps the first of equal passages. One passage more than needed is kept: its
        # hash becomes `complete_below`.
        hashes, index = np.unique(np.concatenate([self._hashes, hashed[places]]), return_index=True)
        self._hashes, self._last = hashes[: MOST_PASSAGES + 1], last[index[: MOST_PASSAGES + 1]]
        self._words, self._is_known = words[count:], is_known[count:]
        self._blocks = blocks[count:]

    def passages(self, line_of: Callable[[Lifetimes], NDArray[np.int64]]) -> Passages:
        """Returns the passages with the smallest hashes so far."""
        last = Lifetimes.none(0) if self._last is None else self._last[:MOST_PASSAGES]
        is_cut = len(self._hashes) > MOST_PASSAGES
        return Passages(
            hashes=self._hashes[:MOST_PASSAGES],
            event=last.start,
            line=line_of(last).astype(np.int32),
            bytes=last.size.astype(np.int64),
            complete_below=int(self._hashes[MOST_PASSAGES]) if is_cut else 1 << 64,
        )
