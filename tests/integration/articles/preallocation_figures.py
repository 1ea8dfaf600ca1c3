# --- article ---
import torch

print(f"初始预分配显存: {torch.cuda.memory_reserved() / 1024**2:.2f} MB")
x = torch.randn(10000, 10000, device="cuda")
print(f"创建 Tensor 后: {torch.cuda.memory_reserved() / 1024**2:.2f} MB")

del x
print(f"删除 Tensor 后: {torch.cuda.memory_reserved() / 1024**2:.2f} MB")

torch.cuda.empty_cache()  # 释放缓存
print(f"调用 empty_cache() 后: {torch.cuda.memory_reserved() / 1024**2:.2f} MB")
