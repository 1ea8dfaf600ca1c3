# --- preamble ---
import torch
# --- article ---
# CPU -> GPU（分配显存 + 拷贝数据）
x_cpu = torch.randn(1000, 1000, device='cpu')
x_gpu = x_cpu.to('cuda')  # 同步拷贝，阻塞 CPU

# GPU -> CPU（拷贝回主机内存）
y_cpu = x_gpu.to('cpu')

# GPU 0 -> GPU 1（跨 GPU 拷贝）
x_gpu0 = torch.randn(100, device='cuda:0')
x_gpu1 = x_gpu0.to('cuda:1')
# --- check ---
print(x_gpu.device, y_cpu.device, x_gpu0.device, x_gpu1.device)
print("same tensor", x_gpu.to("cuda") is x_gpu)
