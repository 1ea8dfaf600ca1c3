"""Libraries that bring kernels of their own."""
