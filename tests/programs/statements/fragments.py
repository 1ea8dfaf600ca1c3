"""Shows that no tensor spans several free pieces of memory until PyTorch merges the pieces."""

import torch


def ask(gib: int) -> torch.Tensor | None:
    try:
        return torch.empty(gib << 30, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        print("said:", error)
        return None


def retries() -> int:
    return int(torch.cuda.memory_stats()["num_alloc_retries"])


# The twelve pieces below reuse the memory of this tensor, so they are adjacent.
whole = ask(12)
del whole
pieces = [ask(1) for _ in range(12)]
del pieces[::2]
torch.cuda.empty_cache()
print("free on the card:", torch.cuda.mem_get_info()[0] >> 30)
print("five of six in pieces:", "refused" if ask(5) is None else "works")

# Once the tensors between the free pieces are freed, the pieces are merged.
pieces.clear()
print("twelve in one:", "refused" if ask(12) is None else "works")

# PyTorch releases wholly free segments before a request fails.
torch.cuda.empty_cache()
pieces = [ask(2) for _ in range(6)]
pieces.clear()
before = retries()
print("more than a segment:", "refused" if ask(13) is None else "works", retries() - before)
