"""Reads all GPUs as `plimsoll top` does, and checks that no context was made on the first one."""

import ctypes

from plimsoll.integrations.top.watch import Watch

Watch().look()
active, flags = ctypes.c_int(), ctypes.c_uint()
driver = ctypes.CDLL("libcuda.so.1")
driver.cuInit(0)
assert driver.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active)) == 0
assert active.value == 0
