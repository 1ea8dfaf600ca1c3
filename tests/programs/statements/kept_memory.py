"""Shows that a deleted tensor's memory stays reserved and is reused until empty_cache()."""

import torch

MIB = 1 << 20


def tensor(mib: int) -> torch.Tensor:
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def show(moment: str) -> None:
    in_use = before - torch.cuda.mem_get_info()[0]  # as nvidia-smi shows it
    figures = torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), in_use
    print(f"{moment}:", *(figure // MIB for figure in figures))


def driver_calls() -> int:
    return int(torch.cuda.memory_stats()["num_device_alloc"])


before = torch.cuda.mem_get_info()[0]
show("at first")

first = tensor(400)
address = first.data_ptr()
calls = driver_calls()
show("created")
del first
show("deleted")

half = tensor(200)
print("at the same address:", half.data_ptr() == address)
show("half of it")
rest = tensor(200)
show("both halves")
print("further calls of the driver:", driver_calls() - calls)

# A segment can only be released as a whole, unless it is expandable.
del rest
torch.cuda.empty_cache()
show("emptied around half")
torch.cuda.synchronize()
del half
torch.cuda.empty_cache()
show("emptied")

# empty_cache() does not change a tensor's content.
small = torch.arange(4, device="cuda")
large = tensor(400)
del large
torch.cuda.empty_cache()
show("emptied around a small one")
print("it holds:", small.tolist())
