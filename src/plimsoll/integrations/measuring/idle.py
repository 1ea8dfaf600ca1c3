"""Checks that only this process uses a card: other processes would falsify measurements."""

from __future__ import annotations

import fcntl
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from plimsoll.base.errors import InputError
from plimsoll.base.telemetry.nvml import GpuReading, Nvml, plain_uuid
from plimsoll.base.units import format_size
from plimsoll.torch.building.cache import cache_folder

if TYPE_CHECKING:
    from types import TracebackType

_MOST_BYTES = 1 << 30
"""A card with more bytes in use than this is not idle. A desktop alone uses fewer bytes."""
_LEAST_OF_USER_BYTES = 256 << 20
"""A process that holds less memory than this on the card is ignored.

A process that computes holds more, because its CUDA context alone takes more.
"""
_MOST_GROWTH_BYTES = 32 << 20
"""The most by which the memory in use may grow during a measurement."""
_PATIENCE_SECONDS = 5
"""Seconds that the driver may take to free an ended process's memory."""


class CardInUseError(InputError):
    """Raised if another process uses the card."""


class Idle:
    """Checks that no other process uses a card during the `with` block.

    Args:
        uuid: The card's UUID as PyTorch reports it.

    Attributes:
        before_bytes: The bytes of the card in use before the measurement.
        unseen: The reason why NVML does not list the card's processes; "" if it does.

    Raises:
        CardInUseError: If another process uses the card.
    """

    def __init__(self, uuid: str) -> None:
        self._uuid = plain_uuid(uuid)
        self._nvml = Nvml()
        self._held = ExitStack()
        self.before_bytes = 0
        self.unseen = ""

    def __enter__(self) -> Self:
        with ExitStack() as held:
            self._lock(held)
            reading = self._read()
            if reading is not None:
                self._refuse_users(reading)
                self.before_bytes = reading.used_bytes or 0
            self._held = held.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._held.close()

    def check(self) -> None:
        """Checks the card again, after a part was measured.

        Raises:
            CardInUseError: If another process uses the card now.
        """
        if self.unseen:
            return
        end = time.monotonic() + _PATIENCE_SECONDS
        while True:
            reading = self._read()
            used = 0 if reading is None else reading.used_bytes or 0
            if used <= self.before_bytes + _MOST_GROWTH_BYTES:
                return
            if time.monotonic() > end:
                raise CardInUseError(
                    "another process began to use the card meanwhile: "
                    f"{format_size(used - self.before_bytes)} more is in use, so plimsoll discards "
                    "the measurements. Measure again when the card is free"
                )
            time.sleep(0.1)

    def _lock(self, held: ExitStack) -> None:
        """Locks the card against other measurements."""
        place = cache_folder() / f"measures-{self._uuid or 'gpu'}.lock"
        file = held.enter_context(place.open("a"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CardInUseError(
                "another plimsoll measures this card: wait until it has ended"
            ) from None
        except OSError:
            pass  # this file system does not support locks

    def _read(self) -> GpuReading | None:
        found = self._nvml.read()
        self.unseen = found.unavailable or ""
        own = [each for each in found.gpus if self._uuid and each.uuid == self._uuid]
        if not own and not self.unseen:
            self.unseen = "NVML does not list the card"
        return next(iter(own), None)

    def _refuse_users(self, reading: GpuReading) -> None:
        """Raises CardInUseError if other processes compute on the card; a desktop is allowed."""
        which = f"GPU {reading.index} ({reading.name})"
        users = {
            pid: size
            for pid, size in (reading.processes or {}).items()
            if size is None or size >= _LEAST_OF_USER_BYTES
        }
        if users:
            said = ", ".join(
                f"process {pid}" + (f" has {format_size(size)}" if size else "")
                for pid, size in sorted(users.items())
            )
            raise CardInUseError(
                f"other processes use {which}, and their memory would be measured too: {said}; end "
                "them, or choose another card with --gpu"
            )
        used = reading.used_bytes or 0
        if used > _MOST_BYTES:
            raise CardInUseError(
                f"processes that plimsoll cannot see use {format_size(used)} of {which}; measure "
                "when the card is free, or choose another card with --gpu"
            )
