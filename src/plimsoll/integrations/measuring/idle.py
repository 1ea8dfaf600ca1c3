"""Looks for other processes on a card: their memory would be measured, too."""

from __future__ import annotations

import fcntl
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from plimsoll.base.errors import InputError
from plimsoll.base.telemetry.nvml import GpuReading, Nvml
from plimsoll.base.units import format_size
from plimsoll.torch.building.cache import cache_folder

if TYPE_CHECKING:
    from types import TracebackType

_MOST_BYTES = 1 << 30
"""The most that an idle card has in use, such as for a desktop."""
_MOST_GROWTH_BYTES = 32 << 20
"""The most by which that may change from part to part."""
_PATIENCE_SECONDS = 5
"""So long the driver may take to free what an ended process had."""


class Idle:
    """Makes sure that no other process uses a card while the context lasts.

    Args:
        gpu: Its number, as nvidia-smi counts; None for a simulated one.

    Attributes:
        before_bytes: The memory that was in use before.
        unseen: The reason why NVML does not say who uses the card; "" where it does.

    Raises:
        InputError: If another process uses it.
    """

    def __init__(self, gpu: int | None) -> None:
        self._gpu = gpu
        self._nvml = Nvml()
        self._held = ExitStack()
        self.before_bytes = 0
        self.unseen = ""

    def __enter__(self) -> Self:
        if self._gpu is not None:
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
        """Look again, after a part was measured.

        Raises:
            InputError: If another process uses the card now.
        """
        if self._gpu is None or self.unseen:
            return
        end = time.monotonic() + _PATIENCE_SECONDS
        while True:
            reading = self._read()
            used = 0 if reading is None else reading.used_bytes or 0
            if used <= self.before_bytes + _MOST_GROWTH_BYTES:
                return
            if time.monotonic() > end:
                raise InputError(
                    f"another process began to use GPU {self._gpu} meanwhile: "
                    f"{format_size(used - self.before_bytes)} more is in use; nothing is kept. "
                    "Measure when it is free"
                )
            time.sleep(0.1)

    def _lock(self, held: ExitStack) -> None:
        """Keep other measurements of the card away."""
        file = held.enter_context((cache_folder() / f"measures-gpu-{self._gpu}.lock").open("a"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"another plimsoll measures GPU {self._gpu}: wait until it has ended"
            ) from None

    def _read(self) -> GpuReading | None:
        found = self._nvml.read()
        self.unseen = found.unavailable or ""
        return next((each for each in found.gpus if each.index == self._gpu), None)

    def _refuse_users(self, reading: GpuReading) -> None:
        which = f"GPU {self._gpu} ({reading.name})"
        if reading.processes:
            users = ", ".join(
                f"process {pid}" + (f" has {format_size(size)}" if size else "")
                for pid, size in sorted(reading.processes.items())
            )
            raise InputError(
                f"{which} is in use, and that memory would be measured, too: {users}; end them, "
                "or choose another card with --gpu"
            )
        used = reading.used_bytes or 0
        if used > _MOST_BYTES:
            raise InputError(
                f"{which} has {format_size(used)} in use by processes that cannot be seen "
                "from here; measure when it is free, or choose another card with --gpu"
            )
