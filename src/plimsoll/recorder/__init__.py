"""Recording a running program's GPU memory into a file, as it happens.

`plimsoll.record("run.plim")` records what PyTorch's allocator does, or plimsoll's, or a simulated
GPU's. The file is complete at every moment: it opens even if the program is killed.
"""

from plimsoll.recorder.recorder import Recorder, record

__all__ = ["Recorder", "record"]
