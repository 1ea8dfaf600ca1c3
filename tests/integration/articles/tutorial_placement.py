# --- article ---
import torch

# 方法 1 - 创建时指定
x_cpu = torch.randn(3, 4, device='cpu')
x_gpu = torch.randn(3, 4, device='cuda:0')  # 放置在第 0 号 GPU

# 方法 2 - 先创建后迁移
x = torch.randn(3, 4)  # 默认在 CPU
x = x.to('cuda')       # 迁移到当前默认 GPU
x = x.cuda(0)          # 迁移到 GPU 0（旧式 API）

# 查询 Tensor 所在设备
print(x.device)       # cuda:0
print(x.is_cuda)      # True
# --- check ---
for other in (torch.randn(3, 4), torch.randn(3, 4, device="cuda:1")):
    try:
        x + other
    except RuntimeError as error:
        print("RuntimeError:", error)
try:
    x @ torch.randn(4, 3)
except RuntimeError as error:
    print("RuntimeError:", error)
