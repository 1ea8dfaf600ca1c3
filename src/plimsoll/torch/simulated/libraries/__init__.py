"""Other people's libraries on simulated GPUs: their own kernels, and what only a GPU would load."""
