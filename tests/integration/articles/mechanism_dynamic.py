# --- preamble ---
import torch

print("before", torch.cuda.memory_allocated())
# --- article ---
import torch

# 张量创建并移动到 GPU
x = torch.randn(1024, 1024, device='cuda')  # 动态分配显存
# --- check ---
print("after", torch.cuda.memory_allocated())
