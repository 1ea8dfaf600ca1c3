"""Runs the allocator code of PyTorch's wheel on simulated GPUs.

plimsoll uses that code for versions of PyTorch whose allocation rules plimsoll does not know.

Begin with `own_allocator`, which builds a library from the C++ files in `csrc` and loads it. The
folder `csrc/cuda` has the CUDA functions that PyTorch's allocator calls. The folder
`csrc/allocator` offers PyTorch's allocator as a table of plain C functions
(`include/plimsoll/wheel_api.h`), which the core's `WheelAllocator` calls.
"""
