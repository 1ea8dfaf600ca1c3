"""Shows that a snapshot with stacks names, for each allocation, the program's line that made it."""

import torch


def train() -> None:
    model = torch.nn.Linear(1000, 1000, device="cuda")
    for _ in range(3):
        model(torch.ones(64, 1000, device="cuda")).sum().backward()


torch.cuda.memory._record_memory_history()
train()
torch.cuda.memory._dump_snapshot("training.pickle")

torch.cuda.memory._record_memory_history(enabled=None)
train()
torch.cuda.memory._dump_snapshot("stopped.pickle")
