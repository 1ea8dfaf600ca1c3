"""Detects ranks that wait for each other and would wait for ever.

A rank that waits for more than half a second says so on a board that all ranks can read, and renews
its entry twice a second. It also reads the entries of the ranks for which it waits, then those of
the ranks for which these ranks wait, and so on. If all these ranks have ended or wait, and none has
made progress between two reads, the wait will never end.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHORTEST_NAP, _LONGEST_NAP = 0.0001, 0.02
"""The shortest and the longest time between two polls, in seconds. The time grows: most waits are
short, and a long wait should not use the processor.
"""
_SECONDS_BETWEEN_LOOKS = 0.5
_BEATS = 3
_MOST_NAMED = 4
_SECONDS_TO_OUTLAST = 600
_AGENT = "TORCHELASTIC_USE_AGENT_STORE"


class DeadlockError(Exception):
    """Ranks wait for each other, or make different calls; the message names the lines."""


class Board:
    """The board on which the ranks of a job write what they wait for.

    When a rank ends, it writes this on the board as well. The first rank usually hosts the job's
    store. The other ranks may still read messages from the store, so the first rank waits until
    they have ended.

    Args:
        store: The job's store.
        rank: This process's rank.
        ranks: The ranks that run.

    Attributes:
        rank: This process's rank.
    """

    def __init__(self, store: Any, rank: int, ranks: Sequence[int]) -> None:
        self._store = store
        self.rank = rank
        self._others = [each for each in ranks if each != rank]
        self._has_store = rank == min(ranks) and os.environ.get(_AGENT) != "True"
        Finalize(None, self._end, exitpriority=-1)  # after the last messages are sent

    def say(self, what: dict[str, Any]) -> None:
        """Replaces this rank's entry on the board; `{}` means that the rank does not wait."""
        self._store.set(f"board/{self.rank}", json.dumps(what))

    def give_up(self, why: str) -> None:
        """Writes that this rank will not answer; ranks that wait for it raise a `DeadlockError`.

        Args:
            why: The error's message.
        """
        self.say({"deadlock": why})

    def _end(self) -> None:
        """Writes that this rank has ended; the rank with the store waits until all have ended."""
        has_failed = (sys.exc_info()[1] or getattr(sys, "last_value", None)) is not None
        try:
            self.say({"ended": True})
            if self._has_store and not has_failed:
                self._outlast()
        except RuntimeError:  # the rank that hosts the store has ended
            return

    def _outlast(self) -> None:
        until = time.monotonic() + _SECONDS_TO_OUTLAST
        for rank in self._others:
            while not ({"ended", "deadlock"} & self.read(rank).keys()):
                if time.monotonic() > until:
                    return
                time.sleep(_LONGEST_NAP)

    def read(self, rank: int) -> dict[str, Any]:
        """Returns a rank's last entry; empty if it has written none."""
        key = f"board/{rank}"
        if not self._store.check([key]):
            return {}
        said: dict[str, Any] = json.loads(self._store.get(key))
        return said


class Wait:
    """A context in which this rank waits for posts of other ranks, and looks for a deadlock."""

    def __init__(self, board: Board | None, rank: int, what: str, line: str, group: str) -> None:
        self._board = board
        self._rank = rank
        self._entry = {"what": what, "line": line, "group": group, "id": secrets.token_hex(8)}
        self._beat = 0
        self._nap = _SHORTEST_NAP
        self._looked = time.monotonic()
        self._seen: dict[int, dict[str, Any]] = {}
        self._has_said = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._has_said and self._board is not None:
            self._board.say({})

    def nap(self, ranks: Sequence[int]) -> None:
        """Sleeps for a short time, because some ranks have not posted yet.

        Raises:
            DeadlockError: If these ranks will never post.
        """
        time.sleep(self._nap)
        self._nap = min(1.5 * self._nap, _LONGEST_NAP)
        if time.monotonic() - self._looked >= _SECONDS_BETWEEN_LOOKS:
            self._look(ranks)
            self._looked = time.monotonic()

    def _look(self, ranks: Sequence[int]) -> None:
        """Writes that this rank waits for the given ranks, and checks for a deadlock."""
        if self._board is None:
            return
        self._beat += 1
        self._has_said = True
        self._board.say({**self._entry, "beat": self._beat, "for": list(ranks)})
        found = self._stuck(ranks)
        if found is None:
            self._seen = {}
            return
        is_same = found.keys() == self._seen.keys() and all(
            now.get("id") == self._seen[rank].get("id") for rank, now in found.items()
        )
        if not is_same:
            self._seen = found
            return
        has_looked_again = all(
            "ended" in now or now["beat"] - self._seen[rank]["beat"] >= _BEATS
            for rank, now in found.items()
        )
        if has_looked_again:
            text = self._text(found)
            self._board.say({"deadlock": text})
            self._has_said = False
            raise DeadlockError(text)

    def _stuck(self, ranks: Sequence[int]) -> dict[int, dict[str, Any]] | None:
        """Returns the entries of all ranks on which this wait depends.

        Returns None if one of these ranks neither waits nor has ended, according to its entry.
        """
        assert self._board is not None
        found: dict[int, dict[str, Any]] = {}
        to_see = list(ranks)
        while to_see:
            rank = to_see.pop()
            if rank in found or rank == self._rank:
                continue
            said = self._board.read(rank)
            if "deadlock" in said:  # another rank has detected the deadlock already
                raise DeadlockError(said["deadlock"])
            if "ended" not in said and "for" not in said:
                return None
            found[rank] = said
            to_see += said.get("for", [])
        return found

    def _text(self, found: dict[int, dict[str, Any]]) -> str:
        lines = [
            f"deadlock: rank {self._rank} waits in {self._entry['what']} of "
            f"{self._entry['group']} at {self._entry['line']}"
        ]
        for rank, said in sorted(found.items())[:_MOST_NAMED]:
            if "ended" in said:
                lines.append(f"rank {rank} has ended")
            else:
                lines.append(
                    f"rank {rank} waits in {said['what']} of {said['group']} at {said['line']}"
                )
        more = len(found) - _MOST_NAMED
        return "; ".join(lines) + (f"; and {more} more ranks" if more > 0 else "")
