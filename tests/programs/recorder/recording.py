"""Programs that record an allocator without PyTorch.

    python recording.py NAME FILE

NAME is the function to run. plimsoll records into FILE while this function runs.
"""

import os
import sys
import time
from collections.abc import Callable

from plimsoll import Allocator, SimulatedGpu
from plimsoll.engine.recorder.recorder import Recorder
from plimsoll.torch.session.record import record

allocator = Allocator(SimulatedGpu("8GiB"))


def steps(recording: Recorder) -> None:
    """Allocates and frees until the parent process has ended."""
    parent = os.getppid()
    while os.getppid() == parent:
        allocator.free(allocator.malloc(1 << 20))
        recording.mark()
        time.sleep(1e-4)


def fork(_: Recorder) -> None:
    """Allocates, forks, and allocates again in the parent and in the child."""
    allocator.malloc(512)
    child = os.fork()
    allocator.malloc(512)
    if child:
        os.waitpid(child, 0)


def leave(_: Recorder) -> None:
    """Ends the program during the recording."""
    allocator.malloc(512)
    sys.exit(3)


ways: dict[str, Callable[[Recorder], None]] = {way.__name__: way for way in (steps, fork, leave)}
with record(sys.argv[2], allocator=allocator) as recording:
    print("recording", flush=True)
    ways[sys.argv[1]](recording)
