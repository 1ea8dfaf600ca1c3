"""PyTorch's own allocator from its wheel, on simulated GPUs: for versions whose rules are unknown.

Begin with `own_allocator`, which builds and loads the library. In `csrc`, `cuda` has the CUDA
functions that PyTorch's allocator calls, and `allocator` has its functions as a table of plain C
(`include/plimsoll/wheel_api.h`). The core's `WheelAllocator` uses the table.
"""
