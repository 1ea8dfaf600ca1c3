# --- preamble ---
import torch
# --- article ---
try:
    # 分配超过显存容量的 Tensor
    x = torch.randn(100000, 100000, device='cuda')
except RuntimeError as e:
    if "out of memory" in str(e):
        print("显存不足！")
        torch.cuda.empty_cache()  # 清空缓存重试
# --- check ---
x = torch.randn(1000, 1000, device='cuda')
print("ooms", torch.cuda.memory_stats()["num_ooms"], "and goes on", x.device)
