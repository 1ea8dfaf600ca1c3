# --- preamble ---
import torch

device = torch.device("cuda")
tensor_a = torch.randn(1024 * 1024 * 100, device=device)
del tensor_a
print(torch.cuda.memory_summary(device=device, abbreviated=True))
# --- article ---
# 示例:释放所有缓存的显存
print("\n--- 5. 清空缓存并释放 Reserved 显存 ---")
torch.cuda.empty_cache()
# 此时 nvidia-smi 看到的占用会大幅下降。
print(torch.cuda.memory_summary(device=device, abbreviated=True))
