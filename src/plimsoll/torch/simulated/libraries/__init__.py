"""Other people's libraries on simulated GPUs: their own kernels, and files that need a GPU."""
