# --- preamble ---
import torch
# --- article ---
device1 = torch.device("cuda:0")
device2 = torch.device("cuda:1")

x = torch.randn(1024, 1024, device=device1)  # 分配到 GPU 0
y = torch.randn(1024, 1024, device=device2)  # 分配到 GPU 1
# --- check ---
print(x.device, y.device)
del x
torch.cuda.empty_cache()
for device in (device1, device2):
    print(device, torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device))
