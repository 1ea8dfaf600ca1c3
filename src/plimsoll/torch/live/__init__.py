"""plimsoll's allocator under PyTorch, on a real GPU."""
