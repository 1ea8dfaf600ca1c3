# --- preamble ---
import torch


def show(when):
    print(when, torch.cuda.memory_allocated(), torch.cuda.memory_reserved())
# --- article ---
# 方法 1 - 删除 Tensor 引用
x = torch.randn(1000, 1000, device='cuda')
del x  # 显存进入缓存池，但未归还系统
# --- check ---
show("deleted")
# --- article ---
# 方法 2 - 清空缓存池
torch.cuda.empty_cache()  # 归还所有未使用的缓存显存给系统
# --- check ---
show("emptied")
# --- preamble ---
x = torch.randn(1000, 1000, device='cuda')  # the article deletes it a second time
# --- article ---
# 方法 3 - 同步删除（确保释放完成）
torch.cuda.synchronize()
del x
torch.cuda.empty_cache()
# --- check ---
show("emptied")
