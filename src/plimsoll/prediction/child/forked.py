"""The memory of processes forked from this one, such as a loader's workers.

A forked process shares each page of its parent's memory until one of the two writes to the page.
Then the kernel copies the page. Counting the copied pages takes milliseconds. So plimsoll counts
them only now and then, in one of the forked processes, and assumes the same number for all of them.
All other figures of each process's memory are read every time.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from typing import TYPE_CHECKING

from plimsoll.prediction.child.resident import common_bytes, resident
from plimsoll.torch.simulated.library import HostAccount

if TYPE_CHECKING:
    from plimsoll.torch.simulated.simulation import Simulation

_MOST = 4096
_SHARE = 0.003
"""The largest share of the time that measuring copied memory may take."""


class _Slot(ctypes.Structure):
    """One forked process's entry in `_Table`.

    The parent and all the processes forked from it use the same `_Table`, in shared memory.
    """

    _fields_ = [
        ("process", ctypes.c_int64),
        ("uses_cuda", ctypes.c_int64),
        ("inherited", ctypes.c_int64),  # the process's resident bytes at its start
        ("account", HostAccount),
    ]


class _Table(ctypes.Structure):
    _fields_ = [("count", ctypes.c_int64), ("slots", _Slot * _MOST)]


class ForkedProcesses:
    """Tracks the processes that this process forks from now on.

    Attributes:
        uses_cuda: The number of ended processes that used a GPU.
        spent: The seconds spent on measuring copied memory.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._began = time.monotonic()
        self.spent = 0.0
        self._copied = 0  # the most bytes that one forked process had copied
        self._seen = self._number = 0
        self._live: list[_Slot] = []
        self._table = _Table.from_buffer(mmap.mmap(-1, ctypes.sizeof(_Table)))
        self._own: _Slot | None = None
        self.uses_cuda = 0
        guarded = simulation.watchers.guarded
        os.register_at_fork(
            before=guarded("forks", self._before),
            after_in_child=guarded("forked processes", self._in_child),
        )
        simulation.on_first_use(guarded("forked processes that use CUDA", self._note_cuda))

    def look(self) -> tuple[int, int]:
        """Returns the present and the peak memory of all forked processes together, in bytes.

        Memory that a forked process shares with this process does not count. The peak is an upper
        bound: the sum of the maximum that each process reached since the last call.
        """
        known = min(self._table.count, _MOST)
        self._live += [self._table.slots[number] for number in range(self._seen, known)]
        self._seen = known
        now = most = 0
        for slot in list(self._live):
            if not slot.process:  # the forked process has not filled its slot yet
                continue
            memory = resident(slot.process)
            if memory is None:
                self._live.remove(slot)
                self.uses_cuda += slot.uses_cuda
                continue
            if self.spent < _SHARE * (time.monotonic() - self._began):
                self._find_copied(slot)
            account = slot.account
            besides = account.extra + slot.inherited - min(self._copied, slot.inherited)
            now += max(0, memory.own - besides) + account.absent
            most += max(0, memory.most_own - besides) + account.most_absent
            account.most_absent = account.absent
        return now, most

    def _find_copied(self, slot: _Slot) -> None:
        began = time.thread_time()
        common = common_bytes(slot.process)
        if common is not None:
            self._copied = max(self._copied, slot.inherited - common)
        self.spent += time.thread_time() - began

    def _before(self) -> None:
        self._number = self._table.count  # in the forked process, the index of its own slot
        self._table.count += 1

    def _in_child(self) -> None:
        if self._number >= _MOST:
            return
        self._own = self._table.slots[self._number]
        self._simulation.library.account_host_in(self._own.account)
        memory = resident()
        self._own.inherited = 0 if memory is None else memory.own
        self._own.process = os.getpid()

    def _note_cuda(self) -> None:
        if self._own is not None:
            self._own.uses_cuda = 1
