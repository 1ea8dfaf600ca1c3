"""PyTorch on CUDA devices without a GPU: begin with `simulation`.

PyTorch computes the shapes, the engine keeps the memory, and `csrc` has the kernels' memory, their
times and the known values. `ranks` has the communication of a job's ranks, their waits, and NCCL's
memory. `compiled` is torch.compile and Triton, whose kernels take memory and time and compute
nothing; `libraries` has other people's packages: their kernels, stand-ins, made-up files.
"""
