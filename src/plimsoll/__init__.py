"""GPU memory for PyTorch that people can predict, see and stretch.

Play with an allocator on a simulated GPU (`SimulatedGpu`, `Allocator`), or replay a memory history
that PyTorch recorded (`replay`). The command `plimsoll` does the same from a shell.
"""

from plimsoll.engine import Allocator, MemoryPool, SimulatedGpu, SimulatedMachine
from plimsoll.errors import DriverError, InputError, OutOfMemoryError
from plimsoll.replay import ReplayResult, replay

__version__ = "0.1.0"

__all__ = [
    "Allocator",
    "DriverError",
    "InputError",
    "MemoryPool",
    "OutOfMemoryError",
    "ReplayResult",
    "SimulatedGpu",
    "SimulatedMachine",
    "__version__",
    "replay",
]
