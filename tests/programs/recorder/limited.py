"""Records an allocator until it is killed. LIMIT may be less than `record` usually accepts.

python limited.py FILE LIMIT
"""

import sys

from plimsoll import Allocator, SimulatedGpu
from plimsoll.engine.recorder import parts, recorder
from plimsoll.torch.session.record import record

parts._LEAST_LIMIT = 1
recorder.INTERVAL_SECONDS = 0.001
allocator = Allocator(SimulatedGpu("8GiB"))
with record(sys.argv[1], allocator=allocator, limit=int(sys.argv[2])):
    kept = [allocator.malloc(1 << 20) for _ in range(8)]
    while True:
        for number in range(1, 2000):
            allocator.free(allocator.malloc(997 * number))
