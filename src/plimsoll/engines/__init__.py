"""The engines that serve this process, and what they hold in PyTorch's forms."""
