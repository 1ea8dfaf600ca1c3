"""Counts the real GPUs of this machine through CUDA's driver.

PyTorch is not used, because its import takes seconds. No CUDA context is made.
"""

from __future__ import annotations

import ctypes


def count_gpus() -> int:
    """Returns the number of GPUs that this process may use; 0 if there is no driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value
