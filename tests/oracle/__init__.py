"""Compares plimsoll's allocator `native` with PyTorch's own caching allocator, without a GPU.

A CUDA build of PyTorch has the allocator in libc10_cuda, which needs libc10 and about 45 functions
of CUDA's runtime and driver. `src/plimsoll/torch/wheel` implements these functions with
plimsoll's simulated driver. A program in C++ (`main.cpp`) performs the same random operations on
PyTorch's allocator and on `native`, and compares every step (`comparison.h`). Begin with `side.h`,
the interface of both allocators. `program.h` has the operations.

In Python: `wheels.py` gets the library of a version, `builds.py` compiles the program for it, and
`python -m tests.oracle 2.15.0` runs it. `make test-oracle TORCH=2.16.0` checks a new PyTorch.
"""
