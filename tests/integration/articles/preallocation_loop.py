# --- article ---
import torch

for _ in range(10):
    x = torch.randn(10000, 10000, device="cuda")  # 每次都向 GPU 申请新显存
    del x  # 释放显存
# --- check ---
print("driver calls", torch.cuda.memory_stats()["num_device_alloc"])
