"""The engine by itself: a simulated GPU of any size, and an allocator on it."""

from plimsoll.engines.shared_use import SharedUse
from plimsoll.simulator.allocator import Allocator, MemoryPool
from plimsoll.simulator.machine import SimulatedGpu, SimulatedMachine

__all__ = ["Allocator", "MemoryPool", "SharedUse", "SimulatedGpu", "SimulatedMachine"]
