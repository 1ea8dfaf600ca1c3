# --- preamble ---
import torch
# --- article ---
torch.cuda.set_per_process_memory_fraction(0.8, device='cuda:0')
# --- check ---
total = torch.cuda.get_device_properties(0).total_memory
x = torch.empty(int(total * 0.75), dtype=torch.uint8, device="cuda")
del x
print("three quarters work")
try:
    torch.empty(int(total * 0.85), dtype=torch.uint8, device="cuda")
except torch.cuda.OutOfMemoryError as error:
    print(error)
