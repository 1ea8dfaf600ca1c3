# --- preamble ---
import torch

print("initialized", torch.cuda.is_initialized())
# --- article ---
import torch

# 此时还未分配显存
x = torch.randn(1000, 1000, device='cuda')

# 现在才真正分配显存并执行运算
y = x + 1

# 查看当前显存使用
print(f"已分配：{torch.cuda.memory_allocated() / 1e6:.2f} MB")
print(f"已缓存：{torch.cuda.memory_reserved() / 1e6:.2f} MB")
# --- check ---
print("initialized", torch.cuda.is_initialized())
