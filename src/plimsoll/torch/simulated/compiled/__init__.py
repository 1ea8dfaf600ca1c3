"""Compiled programs on simulated GPUs: torch.compile and Triton, whose kernels only account."""
