"""Puts plimsoll's allocator under PyTorch on a real GPU.

Read `live_engines` and `csrc/allocator.h` first.
"""
