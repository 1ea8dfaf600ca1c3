# --- preamble ---
import torch

device = torch.device("cuda")
tensor_a = torch.randn(1024 * 1024 * 100, device=device)
del tensor_a
print(torch.cuda.memory_summary(device=device, abbreviated=True))
# --- article ---
# 此时 nvidia-smi 看到的占用会大幅下降。
print(torch.cuda.memory_summary(device=device, abbreviated=True))
PyTorch 的缓存分配器是一种性能优化手段,它导致了 nvidia-smi 报告的 Reserved 显存与实际 Allocated 显存不一致。了解这个机制,并使用 torch.cuda.memory_summary() 来监控内部的 Allocated 和 Reserved 状态,是高效管理 GPU 资源的关键。
