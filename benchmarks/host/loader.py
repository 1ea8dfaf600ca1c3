"""Loads images from a numpy array with a DataLoader. Arguments: DEVICE WORKERS [IMAGE_SIDE]."""

import sys
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

device, workers = sys.argv[1], int(sys.argv[2])
side = int(sys.argv[3]) if len(sys.argv) > 3 else 128


class Images(Dataset):
    def __init__(self) -> None:
        numbers = np.random.default_rng(0)
        self.data = numbers.integers(0, 255, (2000, 3, side, side), dtype=np.uint8)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(self.data[index].astype(np.float32) / 255)


if __name__ == "__main__":
    model = torch.nn.Conv2d(3, 8, 3, stride=4).to(device)
    pins = device == "cuda"
    loader = DataLoader(Images(), batch_size=100, num_workers=workers, pin_memory=pins)
    with torch.no_grad():
        for batch in loader:
            model(batch.to(device, non_blocking=True)).sum().item()
            # on the CPU, the sleep stands for the time that a GPU would compute
            time.sleep(0.3 if device == "cpu" else 0)
