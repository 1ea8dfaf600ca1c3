"""Simulates CUDA devices for PyTorch; no GPU is needed. Read `simulation` first.

PyTorch computes the shapes, and the engine allocates the memory. `csrc` has the rules for kernels'
memory and times, and computes values where that is cheap. `ranks` has the communication of a job's
ranks, their waits, and NCCL's memory. `compiled` adapts torch.compile and Triton, whose kernels
take memory and time and compute nothing. `libraries` adapts other packages: it simulates their
kernels, stands in for missing packages, and makes up missing files.
"""
