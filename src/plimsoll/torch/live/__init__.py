"""Puts plimsoll's allocator under PyTorch on a real GPU.

Begin with `live_engines` and `csrc/allocator.h`.
"""
