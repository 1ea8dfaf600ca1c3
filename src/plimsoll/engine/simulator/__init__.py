"""An engine without PyTorch: a simulated GPU of any size, and an allocator on it.

Begin with `allocator`; `machine` has the GPU.
"""
