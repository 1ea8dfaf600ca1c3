# --- preamble ---
import torch
# --- article ---
# 在不同 GPU 上创建 Tensor
x_gpu0 = torch.randn(1000, device='cuda:0')
x_gpu1 = torch.randn(1000, device='cuda:1')

# 跨 GPU 计算（需先同步到同一设备）
# 错误示例：
# y = x_gpu0 + x_gpu1  # RuntimeError!

# 正确示例：
x_gpu1_on_gpu0 = x_gpu1.to('cuda:0')
y = x_gpu0 + x_gpu1_on_gpu0  # 在 cuda:0 上计算
# --- check ---
print(y.device)
try:
    y = x_gpu0 + x_gpu1  # the article's wrong example
except RuntimeError as error:
    print("RuntimeError:", error)
