"""Compiled programs on simulated GPUs: torch.compile and Triton, whose kernels compute nothing."""
