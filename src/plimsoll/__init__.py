"""GPU memory for PyTorch that people can predict, see and stretch.

Predict what a CUDA script needs where there is no GPU (`predict`, `fit`), replay a memory history
that PyTorch recorded (`replay`), or play with an allocator on a simulated GPU (`SimulatedGpu`,
`Allocator`). The command `plimsoll` does the same from a shell.
"""

from plimsoll.engine import Allocator, MemoryPool, SimulatedGpu, SimulatedMachine
from plimsoll.errors import DriverError, InputError, OutOfMemoryError, ScriptError
from plimsoll.predict import Fit, Prediction, fit, predict
from plimsoll.replay import ReplayResult, replay

__version__ = "0.1.0"

__all__ = [
    "Allocator",
    "DriverError",
    "Fit",
    "InputError",
    "MemoryPool",
    "OutOfMemoryError",
    "Prediction",
    "ReplayResult",
    "ScriptError",
    "SimulatedGpu",
    "SimulatedMachine",
    "__version__",
    "fit",
    "predict",
    "replay",
]
