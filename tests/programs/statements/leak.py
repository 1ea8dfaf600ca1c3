"""Shows leaks: memory grows with each step, because the program keeps references to tensors."""

import torch

MIB = 1 << 20


def grown(way: str) -> list[int]:
    """Returns for each step how many more MiB are allocated than after the first step."""
    kept: list[torch.Tensor] = []
    total = torch.zeros((), device="cuda")
    growth = []
    for _ in range(6):
        activations = layer(data)
        loss = activations.relu().sum()
        if way == "activations kept":
            kept.append(activations)
        elif way == "detached activations kept":
            kept.append(activations.detach())
        elif way == "losses kept":
            kept.append(loss)
        elif way == "detached losses kept":
            kept.append(loss.detach())
        elif way == "losses added":
            total = total + loss
        elif way == "numbers added":
            total += loss.item()
        if "loss" not in way:  # a loss keeps its graph only if no backward pass runs
            loss.backward()
        del activations, loss
        now = torch.cuda.memory_allocated()
        if now > baseline * 1.5:
            print("warning:", way)
        growth.append(now)
    return [(now - growth[0]) // MIB for now in growth]


layer = torch.nn.Linear(1024, 1024).cuda()
data = torch.ones(4096, 1024, device="cuda")
layer(data).relu().sum().backward()  # makes the gradients, so that they do not count as growth
baseline = torch.cuda.memory_allocated()
for way in (
    "nothing kept",
    "activations kept",
    "detached activations kept",
    "losses kept",
    "detached losses kept",
    "losses added",
    "numbers added",
):
    print(f"{way}:", *grown(way))
print("at the end:", (torch.cuda.memory_allocated() - baseline) // MIB)
