"""PyTorch on CUDA devices that no GPU is behind."""
