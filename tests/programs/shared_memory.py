"""Under Windows a tensor goes on in the host's memory; page-locked memory counts as the same."""

import torch

GIB = 1 << 30


def show(what: str) -> None:
    """GiB in use on the card, of the host's memory by tensors, and page-locked."""
    free, total = torch.cuda.mem_get_info()
    shared = torch.cuda.memory_stats().get("shared_reserved_bytes.current", 0)
    locked = torch.cuda.host_memory_stats()["allocated_bytes.current"]
    print(f"{what}:", (total - free) // GIB, shared // GIB, locked // GIB)


def place(gib: int) -> torch.Tensor | None:
    tensor = None
    try:
        tensor = torch.empty(gib * GIB, dtype=torch.uint8).to("cuda")
        show(f"{gib} placed")
    except torch.cuda.OutOfMemoryError as error:
        show(f"{gib} refused")
        print(f"{gib} said:", error)
    return tensor


def lock(gib: int, where: str) -> torch.Tensor | None:
    tensor = None
    try:
        tensor = torch.empty(gib * GIB, dtype=torch.uint8, pin_memory=True)
        show(f"{gib} locked {where}")
    except RuntimeError as error:
        print(f"{gib} not locked {where}:", str(error).splitlines()[0])
    return tensor


locked = lock(32, "alone")
del locked
torch._C._host_emptyCache()
print("capacity:", torch.cuda.get_device_properties(0).total_memory)
for gib in (8, 96, 48):
    torch.cuda.empty_cache()
    tensor = place(gib)
    if gib < 48:
        del tensor
locked = lock(16, "beside 48")
del locked
torch._C._host_emptyCache()
lock(32, "beside 48")
