"""Trains with data workers, which write files and share batches through torch_shm_manager."""

import os
from pathlib import Path

import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset


class Ones(Dataset):  # type: ignore[misc]
    """A dataset that writes one character to a log for each item that it returns."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        with Path("worker.log").open("a") as log:
            log.write("x")
        return torch.full((16,), float(index))


def work(rank: int, folder: str) -> None:
    """Runs in a spawned process, and writes a file."""
    Path(folder, f"rank-{rank}").write_text(str(rank))


def main() -> None:
    """Trains and spawns processes. Checks the files that they and the data workers wrote."""
    mp.set_sharing_strategy("file_system")
    model = torch.nn.Linear(16, 16).cuda()
    for batch in DataLoader(Ones(), batch_size=8, num_workers=2):
        model(batch.cuda())
    assert Path("worker.log").stat().st_size == 64
    os.mkdir("ranks")  # noqa: PTH102
    mp.spawn(work, args=("ranks",), nprocs=2)
    assert sorted(os.listdir("ranks")) == ["rank-0", "rank-1"]  # noqa: PTH208


if __name__ == "__main__":
    main()
