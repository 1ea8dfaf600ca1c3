"""Shows that CUDA starts with the first tensor, and memory is taken only as it is needed."""

import torch


def show(moment: str) -> None:
    print(f"{moment}: {torch.cuda.memory_allocated()} {torch.cuda.memory_reserved()}")


print("started before:", torch.cuda.is_initialized())
show("before")

# A tensor under 10 MiB lies in a segment of 20 MiB, and takes a multiple of 512 bytes.
x = torch.empty(1024, 1024, device="cuda")
print("started after:", torch.cuda.is_initialized())
show("4 MiB")
del x

x = torch.ones(1000, 1000, device="cuda")
y = x + 1
show("two tensors of 4 MB")

# A tensor of 10 MiB or more has its own segment, whose size is a multiple of 2 MiB.
z = torch.empty(10_000, 10_000, device="cuda")
show("and one of 400 MB")
