"""Shows that a new tensor reuses a deleted tensor's memory, without a call to the driver."""

import torch


def driver_calls() -> int:
    return int(torch.cuda.memory_stats()["num_device_alloc"])


torch.cuda.init()
calls = driver_calls()
for _ in range(10):
    x = torch.empty(10_000, 10_000, device="cuda")
    del x
print("calls, kept:", driver_calls() - calls)

# Emptying the cache after each tensor is like having no cache.
torch.cuda.empty_cache()
calls = driver_calls()
for _ in range(10):
    x = torch.empty(10_000, 10_000, device="cuda")
    del x
    torch.cuda.empty_cache()
print("calls, emptied:", driver_calls() - calls)

# A result reuses memory that an equally large tensor freed; an in-place operation takes none.
x = torch.zeros(256, 256, dtype=torch.int32, device="cuda")
addresses = set()
for _ in range(10):
    x = x + 1
    addresses.add(x.data_ptr())
print("places of ten results:", len(addresses))
address = x.data_ptr()
allocated = torch.cuda.memory_allocated()
x += 1
y = x.view(-1)
print("in place:", x.data_ptr() == y.data_ptr() == address, int(y[0]))
print("new bytes:", torch.cuda.memory_allocated() - allocated)
