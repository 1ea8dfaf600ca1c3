# --- preamble ---
import torch

for _ in range(2):
    held = torch.randn(1000, 1000, 300, device='cuda')
# --- article ---
# 获取详细的内存统计信息
stats = torch.cuda.memory_stats(device=0)

print(f"峰值已分配：{stats['allocated_bytes.all.peak'] / 1e9:.2f} GB")
print(f"峰值已缓存：{stats['reserved_bytes.all.peak'] / 1e9:.2f} GB")
print(f"活跃分配次数：{stats['num_alloc_retries']}")

# 生成人类可读的摘要
print(torch.cuda.memory_summary(device=0))
# --- check ---
print("keys", len(stats), all(isinstance(value, int) for value in stats.values()))
