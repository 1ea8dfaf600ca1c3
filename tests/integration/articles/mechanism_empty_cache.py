# --- preamble ---
import torch


def show(when):
    print(when, torch.cuda.memory_allocated(), torch.cuda.memory_reserved())

x = torch.randn(4096, 4096, device="cuda")
kept = torch.randn(4096, 4096, device="cuda")
del x
show("cached")
free = torch.cuda.mem_get_info()[0]
# --- article ---
torch.cuda.empty_cache()  # 清空 PyTorch 内部缓存的显存
# --- check ---
show("emptied")
print("others get", torch.cuda.mem_get_info()[0] - free)
