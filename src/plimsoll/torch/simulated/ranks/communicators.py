"""NCCL's communicators in a process. The first call through a communicator takes GPU memory."""

from __future__ import annotations

import copy
import os
from typing import TYPE_CHECKING

from plimsoll.base.errors import OutOfMemoryError
from plimsoll.torch.simulated.ranks.nccl import Bytes, Communicator, Process, Settings

if TYPE_CHECKING:
    from plimsoll.engine.gpus.profiles import GpuProfile
    from plimsoll.engine.simulator.machine import SimulatedGpu


class Communicators:
    """All NCCL communicators of the process, and the memory that they take.

    Attributes:
        most: The peak of NCCL's memory, by device.
        is_extrapolated: Whether the memory of any communicator is extrapolated, not measured.
    """

    def __init__(
        self, cards: list[GpuProfile], gpus: list[SimulatedGpu], loaded: list[list[str]]
    ) -> None:
        self.most: dict[int, Bytes] = {}
        self.is_extrapolated = False
        self._gpus = gpus
        self._loaded = loaded
        self._processes = [Process(card) for card in cards]
        self._cards = cards
        self._made: dict[tuple[int, int, str], Communicator] = {}
        self._sizes: dict[tuple[int, int, str], Bytes] = {}
        self._handles: dict[tuple[int, int, str], list[int]] = {}
        self._now: dict[int, Bytes] = {}

    def need(
        self, group: int, members: list[int], rank: int, device: int, key: str, pattern: str
    ) -> None:
        """Makes the communicator and the connections that a call needs, unless they already exist.

        Args:
            group: The number of the process group.
            members: The ranks that the group's members have in the job, in the group's order.
            rank: This process's rank in the group.
            device: This process's device.
            key: The device's number for a communicator of the whole group; "0:3" for a
                communicator of the ranks 0 and 3 only.
            pattern: The connections. "ring" is for a collective. "to 1,2 from 3" is for messages
                between ranks of the group. "" means no connections.

        Raises:
            OutOfMemoryError: If the card has too little free memory; nothing is allocated then.
        """
        name = group, device, key
        made = copy.deepcopy(self._made.get(name))  # a copy: a request that fails changes nothing
        process = copy.copy(self._processes[device])
        own, once = Bytes(), Bytes()
        places = [int(each) for each in key.split(":")] if ":" in key else None
        if made is None:
            of = range(len(members)) if places is None else places
            nodes = tuple(machine_of(members[place]) for place in of)
            made = Communicator(
                self._cards[device], nodes, list(of).index(rank), Settings.of_environment()
            )
            own, once = made.begin(), process.begin()
            # `once` includes the memory of PyTorch's streams. If PyTorch has already made the
            # streams, the process has already taken their memory, so `once` must not include it.
            if once.high and "streams" in self._loaded[device]:
                streams = self._cards[device].context_parts.get("streams", 0)
                once -= Bytes(streams, streams)
        own += _connect(made, pattern, places)
        once += process.launch(pattern if _is_kernel(made, pattern) else "")
        gpu = self._gpus[device]
        handles = [gpu.take(_middle(own))] if own.high else []
        if once.high:
            try:
                gpu.take(_middle(once))
            except OutOfMemoryError:
                for handle in handles:
                    gpu.give_back(handle)
                raise
        self._made[name], self._processes[device] = made, process
        self._handles.setdefault(name, []).extend(handles)
        self._sizes[name] = self._sizes.get(name, Bytes()) + own
        now = self._now.get(device, Bytes()) + own + once
        self._now[device] = now
        self.most[device] = max(now, self.most.get(device, now), key=_middle)
        self.is_extrapolated = self.is_extrapolated or made.is_extrapolated

    def has_streams(self, device: int) -> bool:
        """Returns whether NCCL has already allocated memory for PyTorch's streams on a device.

        NCCL's process group makes these streams.
        """
        return device in self.most

    def middle_bytes(self, device: int) -> int:
        """Returns the peak of NCCL's memory on a device, in bytes.

        The peak is known only as a range. This is the middle of the range.
        """
        return _middle(self.most.get(device, Bytes()))

    def drop(self, group: int) -> None:
        """Frees the memory of a group's communicators, but not what NCCL takes per process."""
        for name in [name for name in self._made if name[0] == group]:
            _, device, _ = name
            del self._made[name]
            size = self._sizes.pop(name)
            self._now[device] = self._now[device] - size
            for handle in self._handles.pop(name, []):
                self._gpus[device].give_back(handle)


def _connect(made: Communicator, pattern: str, places: list[int] | None) -> Bytes:
    if not pattern:
        return Bytes()
    if pattern == "ring":
        return made.connect_ring()
    _, to, _, sender = pattern.split(" ")
    peers = [[int(each) for each in text.split(",") if each] for text in (to, sender)]
    if places is not None:  # the communicator has only the ranks in `places`
        peers = [[places.index(peer) for peer in side] for side in peers]
    return made.connect(*peers)


def _is_kernel(made: Communicator, pattern: str) -> bool:
    """Returns whether a call runs a kernel of NCCL's. A single rank's collective only copies."""
    if pattern == "ring":
        return len(made.node_of) > 1
    return any(sign.isdecimal() for sign in pattern)


def _middle(size: Bytes) -> int:
    return (size.low + size.high) // 2


def machine_of(rank: int) -> int:
    """Returns the number of a rank's machine; all machines run as many ranks as this one."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "0"))
    return rank // local if local > 0 else 0
