# --- preamble ---
import sys

import torch

history = []


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4096, 4096)

    def forward(self, data):
        activations = self.layer(data)
        if "leak" in sys.argv:
            history.append(activations)
        return activations.sum()


model = Model().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(4096, 4096, device="cuda")
model(data).backward()  # gradients belong to the baseline
history.clear()
# --- article ---
import torch

# 在训练循环前记录基线
torch.cuda.reset_peak_memory_stats()
baseline = torch.cuda.memory_allocated()

for epoch in range(10):
    # 你的训练代码
    loss = model(data)
    loss.backward()
    optimizer.step()

    # 检查显存是否持续增长
    current = torch.cuda.memory_allocated()
    if current > baseline * 1.5:
        print(f"警告：显存泄漏！当前 {current/1e9:.2f} GB，基线 {baseline/1e9:.2f} GB")
