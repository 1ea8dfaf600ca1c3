"""Computes the memory that NCCL takes of a card.

The rules are those of NCCL's source, 2.28 to 2.30 (init.cc, channel.cc, transport/p2p.cc,
transport/net.cc, graph/search.cc). The sizes of kernels and of their stacks come from NCCL's
libraries. benchmarks/nccl.py and benchmarks/jobs.py compared the results with H200s (one and two
ranks) and H100s (two to four ranks linked by NVLink). The results for other machines are
extrapolated. Some of them are ranges.

NCCL requests each table and buffer of a channel separately, and the driver gives at least 2 MiB
each time. So a channel's memory depends on the number of requests, not on the bytes requested.

A place is a rank in the communicator. A letter is a message from one rank to another.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.base.units import KiB, MiB
from plimsoll.torch.simulated.chips import nearest_row

if TYPE_CHECKING:
    from collections.abc import Collection

    from plimsoll.engine.gpus.profiles import GpuProfile

_PIECE = 2 * MiB
_MOST_CHANNELS = 64
_TABLES_OF_CHANNEL = 3
_TABLES_OF_COMMUNICATOR = 2
_HEADER = 4096
_NETWORK_STEPS = 16
_NETWORK_CHUNK = 128 * KiB
_STACK_BEFORE = 1024
"""The size of each thread's stack before NCCL runs a kernel, in bytes (cudaLimitStackSize)."""
_OTHER = (70 * MiB, 90 * MiB)
"""The least and the most bytes that a process took in addition to NCCL's code.

These bytes hold streams, memory maps and the driver's own data. They were measured on H100s and
H200s.
"""
_AROUND_MEASURED = (-2 * MiB, 12 * MiB)
"""The least and the most bytes that a process takes beyond the card's `nccl_process_bytes`.

`plimsoll measure` finds `nccl_process_bytes` in a job of one rank. A process of a larger job may
take less or more.
"""
MOST_MEASURED = 4
"""The number of ranks of the largest communicator whose memory was measured."""
_LINKS_MEASURED = 18
"""The number of NVLink links of the measured cards."""
_LINKS_OF_SWITCH = 12
"""A card with at least this many links (an A100 or later) is in a machine with NVLink switches."""
_TABLE = Path(__file__).with_name("nccl.csv")


@dataclass(frozen=True)
class _Chip:
    """A row of nccl.csv; comments in that file explain the columns."""

    code_bytes: int
    ring_stack: int
    letters_stack: int
    reads: bool
    measured: bool
    link_mb_per_s: int
    keeps_slow: bool
    speeds: tuple[int, ...]


@cache
def _chip_of(capability: tuple[int, int]) -> _Chip:
    row = nearest_row(_TABLE, capability)
    speeds = (speed for name, speed in row.items() if name.startswith("speed_") and speed)
    return _Chip(
        code_bytes=row["code_bytes"],
        ring_stack=row["ring_stack"],
        letters_stack=row["letters_stack"],
        reads=bool(row["reads"]),
        measured=bool(row["measured"]),
        link_mb_per_s=row["link_mb_per_s"],
        keeps_slow=bool(row["keeps_slow"]),
        speeds=tuple(speeds),
    )


@dataclass(frozen=True)
class Bytes:
    """A size that is known only by its lower and upper bound."""

    low: int = 0
    high: int = 0

    def __add__(self, other: Bytes) -> Bytes:
        return Bytes(self.low + other.low, self.high + other.high)

    def __sub__(self, other: Bytes) -> Bytes:
        return Bytes(self.low - other.low, self.high - other.high)


@dataclass(frozen=True)
class Settings:
    """NCCL's own settings, from the environment; sizes in bytes.

    Attributes:
        buffer: The buffer of a connection for large messages.
        small_buffers: The buffers of a connection for small messages.
        least_channels: The lowest number of channels of a communicator.
        most_channels: The highest number of channels of a communicator.
        most_letter_channels: The highest number of channels for messages between two ranks.
    """

    buffer: int = 4 * MiB
    small_buffers: int = 512 * KiB + 4_915_200
    least_channels: int = 0
    most_channels: int = _MOST_CHANNELS
    most_letter_channels: int = _MOST_CHANNELS

    @classmethod
    def of_environment(cls) -> Settings:
        """Returns the settings from NCCL_* variables.

        Like NCCL, it ignores a variable whose value is not a number.
        """
        small = _number("NCCL_LL_BUFFSIZE", 512 * KiB)
        return cls(
            buffer=_number("NCCL_BUFFSIZE", cls.buffer),
            small_buffers=small + _number("NCCL_LL128_BUFFSIZE", 4_915_200),
            least_channels=_number("NCCL_MIN_CTAS", _number("NCCL_MIN_NCHANNELS", 0)),
            most_channels=_number("NCCL_MAX_CTAS", _number("NCCL_MAX_NCHANNELS", _MOST_CHANNELS)),
            most_letter_channels=_number("NCCL_MAX_P2P_NCHANNELS", _MOST_CHANNELS),
        )


@dataclass
class Communicator:
    """The memory of one rank's part of a communicator.

    Attributes:
        card: The rank's card.
        node_of: The number of each rank's machine, by the rank's place.
        rank: This rank's place.
        settings: NCCL's settings.
    """

    card: GpuProfile
    node_of: tuple[int, ...]
    rank: int
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self) -> None:
        self._has_ring = False
        self._sends: set[int] = set()
        self._receives: set[int] = set()

    @property
    def is_extrapolated(self) -> bool:
        """Returns whether the memory is computed for a case that was not measured on real cards."""
        is_measured_card = self._chip.measured and self.card.nvlinks == _LINKS_MEASURED
        return not is_measured_card or len(self.node_of) > MOST_MEASURED or self._nodes > 1

    @property
    def _chip(self) -> _Chip:
        return _chip_of(self.card.compute_capability)

    @property
    def _nodes(self) -> int:
        return len(set(self.node_of))

    def begin(self) -> Bytes:
        """Returns the memory that the communicator takes before it makes connections.

        NCCL then has tables for all channels, used or not.
        """
        low, high = (
            _TABLES_OF_CHANNEL * max(channels, self._letter_channels(channels))
            for channels in self._channels()
        )
        return Bytes(
            (low + _TABLES_OF_COMMUNICATOR) * _PIECE, (high + _TABLES_OF_COMMUNICATOR) * _PIECE
        )

    def connect_ring(self) -> Bytes:
        """Returns the memory of the connections that the first collective makes."""
        if self._has_ring or len(self.node_of) == 1:
            return Bytes()
        self._has_ring = True
        sends, receives = self._connection()
        low, high = (channels * (sends + receives) for channels in self._channels())
        return Bytes(low, self._most_algorithms() * high)

    def _most_algorithms(self) -> int:
        """Returns the highest number of algorithms that may make connections.

        The ring is always one of them. NCCL may choose others for messages of some sizes.

        If NVLink switches join the cards of one machine, NCCL's cost model (tuning.cc) chooses the
        ring for every size. There a tree has a third less bandwidth than the ring, and its latency
        is no lower. Two ranks on one machine use only the ring.
        """
        if self._nodes > 1:
            return 3
        is_ring = len(self.node_of) == 2 or self.card.nvlinks >= _LINKS_OF_SWITCH
        return 1 if is_ring else 2

    def connect(self, to: Collection[int], sender: Collection[int]) -> Bytes:
        """Returns the memory of the new connections that messages between two ranks need.

        Args:
            to: The places to which this rank sends.
            sender: The places from which this rank receives.
        """
        sends, receives = self._connection()
        new_to = set(to) - self._sends - {self.rank}
        new_from = set(sender) - self._receives - {self.rank}
        had_network = self._is_over_network(self._sends), self._is_over_network(self._receives)
        self._sends |= new_to
        self._receives |= new_from
        own = self.node_of[self.rank]
        near_to = sum(self.node_of[place] == own for place in new_to)
        near_from = sum(self.node_of[place] == own for place in new_from)
        total = []
        for channels in self._channels():
            each = self._letter_channels_per_peer(channels)
            size = each * (near_to * sends + near_from * receives)
            pool = self._letter_channels(channels) * _NETWORK_STEPS * _NETWORK_CHUNK
            is_new = (
                self._is_over_network(self._sends) and not had_network[0],
                self._is_over_network(self._receives) and not had_network[1],
            )
            total.append(size + sum(is_new) * pool)
        return Bytes(total[0], total[1])

    def _is_over_network(self, places: Collection[int]) -> bool:
        return any(self.node_of[place] != self.node_of[self.rank] for place in places)

    def _connection(self) -> tuple[int, int]:
        """Returns the bytes per channel that a connection takes on its sender and its receiver."""
        buffers = _HEADER + self.settings.small_buffers + self.settings.buffer
        if not self.card.nvlinks and self.card.kind != "datacenter":
            return 0, 0  # the buffers are in host memory
        if self.card.nvlinks and self._chip.reads:
            return (
                _pieces(_HEADER + self.settings.buffer),
                _pieces(_HEADER + self.settings.small_buffers),
            )
        return _pieces(_HEADER), _pieces(buffers)

    def _channels(self) -> tuple[int, int]:
        """Returns the lowest and the highest possible number of channels of collectives."""
        if len(self.node_of) == 1:
            found = (_MOST_CHANNELS, _MOST_CHANNELS)
        elif self._nodes > 1:
            found = (16, 16) if self.card.nvlinks else (2, 16)
        elif not self.card.nvlinks:
            found = (2, 4)
        else:
            count = _channels_of_links(self.card)
            found = (count, count)
        low, high = (
            max(min(each, self.settings.most_channels), self.settings.least_channels)
            for each in found
        )
        return low, high

    def _letter_channels(self, channels: int) -> int:
        return _power_of_two(min(channels, self.settings.most_letter_channels))

    def _letter_channels_per_peer(self, channels: int) -> int:
        count = self._letter_channels(channels)
        if len(self.node_of) == 1:
            return count
        most = 2 * self.card.nvlinks if self.card.nvlinks else 2
        if self._nodes > 1:
            most = 2 if 2 * len(self.node_of) <= 4 * count else 1
        return min(_power_of_two(min(channels, most)), count)


@dataclass
class Process:
    """The memory of a card that NCCL takes once per process. All communicators share it."""

    card: GpuProfile

    def __post_init__(self) -> None:
        self._has_begun = False
        self._stack = _STACK_BEFORE

    def begin(self) -> Bytes:
        """Returns the memory of NCCL's code, streams and driver data. Later calls return 0."""
        if self._has_begun:
            return Bytes()
        self._has_begun = True
        if measured := self.card.nccl_process_bytes:
            low, high = (max(0, measured + around) for around in _AROUND_MEASURED)
            return Bytes(low, high)
        code = _pieces(_chip_of(self.card.compute_capability).code_bytes)
        return Bytes(code + _OTHER[0], code + _OTHER[1])

    def launch(self, pattern: str) -> Bytes:
        """Returns how much memory the driver adds to the threads' stacks before a kernel runs.

        The driver keeps a stack for each of the threads that the card can run at the same time.

        Args:
            pattern: "ring" for a collective, "" if no kernel runs. All other values mean a message
                from one rank to another.
        """
        if not pattern:
            return Bytes()
        chip = _chip_of(self.card.compute_capability)
        needed = chip.ring_stack if pattern == "ring" else chip.letters_stack
        grown = max(0, needed - self._stack)
        self._stack = max(self._stack, needed)
        size = grown * self.card.multiprocessors * self.card.max_threads_per_multiprocessor
        return Bytes(size, size)


def _channels_of_links(card: GpuProfile) -> int:
    """Returns how many channels NCCL makes for the NVLink links of a card (search.cc)."""
    chip = _chip_of(card.compute_capability)
    total = card.nvlinks * chip.link_mb_per_s / 1000
    count, best = 0, 0.0
    for speed in chip.speeds:
        if speed > total:
            continue
        if count and speed / best <= 0.49:
            break
        if int(total / speed) * speed > count * best:
            count, best = min(int(total / speed), _MOST_CHANNELS // 2), speed
        if count * best >= total:
            break
    if best >= 25 and not (chip.keeps_slow and best < 50 and count > 4):
        count = min(2 * count, _MOST_CHANNELS // 2)
    return 2 * count


def _power_of_two(number: int) -> int:
    """Returns the smallest power of two that is not below the number."""
    return 1 << max(0, number - 1).bit_length()


def _pieces(size: int) -> int:
    return -(-size // _PIECE) * _PIECE


def _number(name: str, otherwise: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else otherwise
