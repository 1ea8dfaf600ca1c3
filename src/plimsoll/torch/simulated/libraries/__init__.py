"""Libraries with kernels of their own, as they are loaded on simulated GPUs."""
