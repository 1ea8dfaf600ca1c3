"""Shows the limit of host memory that spilled tensors and page-locked memory share on Windows."""

import torch

GIB = 1 << 30


def show(what: str) -> None:
    """Prints GiB: used on the card, spilled into host memory, and page-locked in host memory."""
    free, total = torch.cuda.mem_get_info()
    shared = torch.cuda.memory_stats().get("shared_reserved_bytes.current", 0)
    locked = torch.cuda.host_memory_stats()["allocated_bytes.current"]
    print(f"{what}:", (total - free) // GIB, shared // GIB, locked // GIB)


def place(gib: int) -> torch.Tensor | None:
    try:
        tensor = torch.empty(gib * GIB, dtype=torch.uint8).to("cuda")
    except torch.cuda.OutOfMemoryError as error:
        show(f"{gib} refused")
        print(f"{gib} said:", error)
        return None
    show(f"{gib} placed")
    return tensor


def lock(gib: int, where: str) -> None:
    try:
        tensor = torch.empty(gib * GIB, dtype=torch.uint8, pin_memory=True)
    except RuntimeError as error:
        print(f"{gib} not locked {where}:", str(error).splitlines()[0])
        return
    show(f"{gib} locked {where}")
    del tensor
    torch._C._host_emptyCache()


lock(32, "alone")
print("capacity:", torch.cuda.get_device_properties(0).total_memory)
place(8)
torch.cuda.empty_cache()
place(96)
held = place(48)
lock(16, "beside 48")
lock(32, "beside 48")
