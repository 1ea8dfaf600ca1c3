"""Shows that a DataLoader with pin_memory puts its batches into page-locked host memory."""

import torch
from torch.utils.data import DataLoader

MIB = 1 << 20


class Numbers:
    """Samples of 8 MiB, each filled with its number."""

    def __len__(self) -> int:
        return 28

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.full((2 * MIB,), number, dtype=torch.int32)


def load(name: str, pin_memory: bool) -> None:
    """Loads and keeps all batches. Prints a line for each, then page-locked and reserved MiB."""
    loader = DataLoader(Numbers(), 4, num_workers=8, pin_memory=pin_memory, prefetch_factor=2)
    batches = []
    try:
        for batch in loader:
            batches.append(batch)
            print(f"{name}: {batch.is_pinned()} {tuple(batch.shape)} {batch[:, -1].tolist()}")
    except RuntimeError as error:
        print("error:", *str(error).splitlines())
    locked = torch.cuda.host_memory_stats().get("allocated_bytes.current", 0) // MIB
    print(f"{name}, locked and on the card:", locked, torch.cuda.memory_reserved() // MIB)


load("pageable", pin_memory=False)
load("pinned", pin_memory=True)
