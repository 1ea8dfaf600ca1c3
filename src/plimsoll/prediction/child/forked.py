"""The processes that are forked from this one, such as a loader's workers, and what they take.

They share what was there before, as long as nobody writes to it. What is of one alone takes
milliseconds to find out, so that is done now and then; in between, its memory is looked at.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plimsoll.prediction.child.resident import private_bytes, resident
from plimsoll.torch.simulated.library import HostAccount

if TYPE_CHECKING:
    from plimsoll.torch.simulated.simulation import Simulation

_MOST = 4096
_SHARE = 0.005
"""Of the time that passes, what finding out may take."""
_FIRST_SECONDS = 0.02


class _Slot(ctypes.Structure):
    """What a forked process tells; all that stems from this process has the same table."""

    _fields_ = [
        ("process", ctypes.c_int64),
        ("uses_cuda", ctypes.c_int64),
        ("account", HostAccount),
    ]


class _Table(ctypes.Structure):
    _fields_ = [("count", ctypes.c_int64), ("slots", _Slot * _MOST)]


@dataclass
class _Forked:
    """One of them.

    Attributes:
        slot: What it tells.
        inherited: What it had in memory that it shares with others, when that was found out.
    """

    slot: _Slot
    inherited: int


class ForkedProcesses:
    """Knows of each process that is forked from this one, from now on."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._began = time.monotonic()
        self._spent = 0.0
        self._seen = 0
        self._live: dict[int, _Forked] = {}
        self._table = _Table.from_buffer(mmap.mmap(-1, ctypes.sizeof(_Table)))
        self._own: _Slot | None = None
        self.uses_cuda = 0
        os.register_at_fork(before=self._before, after_in_child=self._in_child)
        simulation.on_first_use(self._note_cuda)

    def look(self) -> tuple[int, int]:
        """What all of them take now, beyond what they share with this process; and at most."""
        for number in range(self._seen, min(self._table.count, _MOST)):
            slot = self._table.slots[number]
            if not slot.process:  # it is about to begin
                break
            self._seen = number + 1
            self._live[slot.process] = _Forked(slot, -1)
        now = most = 0
        for process, forked in list(self._live.items()):
            memory = resident(process)
            if memory is None:
                del self._live[process]
                self.uses_cuda += forked.slot.uses_cuda
                continue
            if forked.inherited < 0 or self._may_spend():
                began = time.monotonic()
                alone = private_bytes(process)
                forked.inherited = max(0, memory.own - (alone or 0))
                self._spent += time.monotonic() - began
            account = forked.slot.account
            extra = account.extra + forked.inherited
            now += max(0, memory.own - extra) + account.absent
            most += max(0, memory.most_own - extra) + account.most_absent
            account.most_absent = account.absent
        return now, most

    def _may_spend(self) -> bool:
        return self._spent < _FIRST_SECONDS + _SHARE * (time.monotonic() - self._began)

    def _before(self) -> None:
        self._table.count += 1

    def _in_child(self) -> None:
        number = self._table.count - 1
        if number >= _MOST:
            return
        self._own = self._table.slots[number]
        self._simulation.library.account_host_in(self._own.account)
        self._own.process = os.getpid()

    def _note_cuda(self) -> None:
        if self._own is not None:
            self._own.uses_cuda = 1
