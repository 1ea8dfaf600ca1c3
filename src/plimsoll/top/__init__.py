"""Every GPU and process, and what holds the memory: `plimsoll top`."""

from plimsoll.top.model import GpuUse, Machine, ProcessUse, put_together
from plimsoll.top.watch import Watch

__all__ = ["GpuUse", "Machine", "ProcessUse", "Watch", "put_together"]
