# --- preamble ---
import torch

x = torch.randn(1024, 1024, device='cuda')
# --- article ---
print(f"Allocated Memory: {torch.cuda.memory_allocated()} bytes")
print(f"Reserved Memory: {torch.cuda.memory_reserved()} bytes")
