# --- preamble ---
import torch

model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8))).cuda()
for parameter in model.parameters():
    parameter.grad = torch.zeros_like(parameter)
data = torch.randn(8192, 1024, device="cuda")
before = torch.cuda.memory_allocated()
loss = model(data).sum()
print("forward", torch.cuda.memory_allocated() - before)
# --- article ---
# 在反向传播之后，计算图被销毁，相关的张量显存被释放
loss.backward()
# --- check ---
torch._C._cuda_clearCublasWorkspaces()
print("backward", torch.cuda.memory_allocated() - before)
