"""PyTorch on CUDA devices without a GPU: begin with `simulation`.

PyTorch computes the shapes, the engine accounts for the memory, `csrc` says what kernels take, how
long they run and which values are known. `ranks` is what the ranks of a job exchange, who waits for
whom, and NCCL's memory. `compiled` is torch.compile and Triton, whose kernels account and compute
nothing; `libraries` knows other people's packages: their kernels, stand-ins, made-up files.
"""
