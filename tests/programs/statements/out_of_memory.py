"""Shows that a tensor larger than the card is an error, which a program can catch and survive."""

import torch

print("card:", torch.cuda.get_device_properties(0).total_memory)
try:
    x = torch.empty(100_000, 100_000, device="cuda")
except RuntimeError as error:
    print("kind:", type(error).__name__)
    print("said:", error)
    torch.cuda.empty_cache()
print("errors:", torch.cuda.memory_stats()["num_ooms"])
x = torch.ones(1000, 1000, device="cuda")
print("goes on:", x.device)
