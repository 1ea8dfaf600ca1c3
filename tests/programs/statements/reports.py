"""Shows that statistics and summaries report allocated and reserved memory, and their peaks."""

import torch

GB = 10**9


def tensor(mib: int) -> torch.Tensor:
    return torch.empty(mib << 20, dtype=torch.uint8, device="cuda")


def summarize() -> None:
    print(torch.cuda.memory_summary(abbreviated=True))


summarize()
x = tensor(400)
summarize()
del x
summarize()
x = tensor(200)
summarize()
del x
torch.cuda.empty_cache()
summarize()

for _ in range(2):
    # the second tensor is allocated before the first tensor is freed
    held = torch.empty(1000, 1000, 300, device="cuda")
print(torch.cuda.memory_summary(device=0))

stats = torch.cuda.memory_stats(device=0)
print(f"allocated: {torch.cuda.memory_allocated(device=0) / GB:.2f}")
print(f"reserved: {torch.cuda.memory_reserved(device=0) / GB:.2f}")
print(f"most allocated: {stats['allocated_bytes.all.peak'] / GB:.2f}")
print(f"most reserved: {stats['reserved_bytes.all.peak'] / GB:.2f}")
print("retries:", stats["num_alloc_retries"])
print("only whole numbers:", all(isinstance(value, int) for value in stats.values()))
print("capacity:", torch.cuda.get_device_properties(0).total_memory)
torch.cuda.reset_peak_memory_stats()
print(f"most since reset: {torch.cuda.max_memory_allocated() / GB:.2f}")
