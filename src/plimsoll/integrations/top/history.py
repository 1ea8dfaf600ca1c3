"""Remembers how much memory each GPU and each process used at the last refreshes of the screen."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from plimsoll.integrations.top.model import Machine

MOST_LOOKS = 600

Key = tuple[str, int | None]
"""A GPU's label, with the id of a process on that GPU. The id is None for the GPU itself."""


class History:
    """Keeps the memory use at the last refreshes; drops GPUs and processes that are gone.

    Args:
        clock: A function that returns seconds; tests replace it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._times: deque[float] = deque(maxlen=MOST_LOOKS)
        self._used: dict[Key, deque[int]] = {}

    def add(self, machine: Machine) -> None:
        """Adds the memory use that a refresh of the screen found."""
        self._times.append(self._clock())
        now = dict(_in_use(machine))
        self._used = {key: self._used.get(key, deque(maxlen=MOST_LOOKS)) for key in now}
        for key, size in now.items():
            self._used[key].append(size)

    def used(self, key: Key) -> list[int]:
        """Returns the bytes at the last refreshes, oldest first; empty if nothing is known."""
        return list(self._used.get(key, ()))

    def seconds(self, looks: int) -> float:
        """Returns the seconds from the oldest to the newest of the last `looks` refreshes."""
        times = list(self._times)[-looks:] if looks else []
        return times[-1] - times[0] if times else 0.0


def _in_use(machine: Machine) -> Iterator[tuple[Key, int]]:
    for gpu in machine.gpus:
        yield (gpu.label, None), gpu.known_bytes
        for use in gpu.processes:
            yield (gpu.label, use.pid), use.known_bytes
