# --- preamble ---
import torch

x = torch.randn(1024, 1024, device='cuda')
# --- article ---
print(torch.cuda.memory_summary())
