"""Runs the allocator code of PyTorch's wheel on simulated GPUs.

plimsoll uses it for versions of PyTorch whose allocation rules it does not know.

Begin with `own_allocator`, which builds and loads the library. In `csrc`, `cuda` has the CUDA
functions that PyTorch's allocator calls. `allocator` offers PyTorch's allocator as a table of plain
C functions (`include/plimsoll/wheel_api.h`), which the core's `WheelAllocator` calls.
"""
