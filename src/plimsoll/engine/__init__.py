"""The engine by itself: a simulated GPU of any size, and an allocator on it."""

from plimsoll.engine.allocator import Allocator, MemoryPool
from plimsoll.engine.machine import SimulatedGpu, SimulatedMachine
from plimsoll.engine.shared import SharedUse

__all__ = ["Allocator", "MemoryPool", "SharedUse", "SimulatedGpu", "SimulatedMachine"]
