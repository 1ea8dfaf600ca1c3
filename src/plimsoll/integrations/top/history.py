"""What was in use at each of the last looks: of every GPU, and of every process on it."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from plimsoll.integrations.top.model import Machine

MOST_LOOKS = 600

Key = tuple[str, int | None]
"""A GPU's label, and a process's number, or None for the GPU itself."""


class History:
    """Remembers the last looks; what has gone is forgotten.

    Args:
        clock: In seconds; for tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._times: deque[float] = deque(maxlen=MOST_LOOKS)
        self._used: dict[Key, deque[int]] = {}

    def add(self, machine: Machine) -> None:
        """Remember a look."""
        self._times.append(self._clock())
        now = dict(_in_use(machine))
        self._used = {key: self._used.get(key, deque(maxlen=MOST_LOOKS)) for key in now}
        for key, size in now.items():
            self._used[key].append(size)

    def used(self, key: Key) -> list[int]:
        """The bytes at the last looks, oldest first; none of what was never there."""
        return list(self._used.get(key, ()))

    def seconds(self, looks: int) -> float:
        """How long ago the first of the last so many looks was."""
        times = list(self._times)[-looks:] if looks else []
        return times[-1] - times[0] if times else 0.0


def _in_use(machine: Machine) -> Iterator[tuple[Key, int]]:
    for gpu in machine.gpus:
        yield (gpu.label, None), gpu.known_bytes
        for use in gpu.processes:
            yield (gpu.label, use.pid), use.known_bytes
