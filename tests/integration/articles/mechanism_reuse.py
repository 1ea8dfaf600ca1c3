# --- preamble ---
import torch
# --- article ---
x = torch.randn(1024, 1024, device='cuda')
# --- check ---
address = x.data_ptr()
# --- article ---
del x  # 不会立即释放显存，而是缓存
y = torch.randn(1024, 1024, device='cuda')  # 复用已缓存的显存
# --- check ---
print("same memory", y.data_ptr() == address)
print("driver calls", torch.cuda.memory_stats()["num_device_alloc"])
