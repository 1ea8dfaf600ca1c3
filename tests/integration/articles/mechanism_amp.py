# --- preamble ---
import torch

model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8))).cuda()
input = torch.randn(8192, 1024, device="cuda")
before = torch.cuda.memory_allocated()
output = model(input)
full = torch.cuda.memory_allocated() - before
full_type = output.dtype
del output
before = torch.cuda.memory_allocated()
# --- article ---
scaler = torch.cuda.amp.GradScaler()

with torch.cuda.amp.autocast():
    output = model(input)  # 使用混合精度进行计算
# --- check ---
mixed = torch.cuda.memory_allocated() - before
print("types", full_type, output.dtype)
print("bytes", full, mixed)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler.scale(output.float().mean()).backward()
scaler.step(optimizer)
scaler.update()
print("gradients", {parameter.grad.dtype for parameter in model.parameters()})
