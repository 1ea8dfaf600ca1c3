# --- preamble ---
import torch
# --- article ---
# PyTorch 2.1+ 提供的内存分析工具
torch.cuda.memory._record_memory_history()

# ... 执行你的代码 ...
# --- filled in ---
def train():
    model = torch.nn.Linear(1000, 1000, device="cuda")
    for _ in range(3):
        model(torch.randn(64, 1000, device="cuda")).sum().backward()


train()
# --- article ---
# 生成内存快照（可用 Chrome 查看）
torch.cuda.memory._dump_snapshot("memory_snapshot.pickle")

torch.cuda.memory._record_memory_history(enabled=None)  # 停止记录
