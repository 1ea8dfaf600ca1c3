"""The real GPUs of this machine, as CUDA's driver counts them.

PyTorch is not asked, which would take seconds, and no context is made.
"""

from __future__ import annotations

import ctypes


def count_gpus() -> int:
    """How many GPUs this process may use; 0 also where there is no driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value
