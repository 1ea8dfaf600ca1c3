"""Train on batches that are on the GPU before they are needed: plain PyTorch.

plimsoll run --simulate H100 examples/data_pytorch.py
"""

import torch
from torch.utils.data import DataLoader, Dataset

from plimsoll import PinnedCollate, PrefetchLoader


class Images(Dataset):
    """Random images and labels."""

    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.randint(0, 255, (3, 64, 64), dtype=torch.uint8), index % 10


def main() -> None:
    """Train for two epochs."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = DataLoader(
        Images(),
        batch_size=64,
        num_workers=2,
        persistent_workers=True,
        collate_fn=PinnedCollate(),
    )
    batches = PrefetchLoader(loader, device)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, stride=2),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.LazyLinear(10),
    ).to(device)
    model(torch.zeros(1, 3, 64, 64, device=device))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        for images, labels in batches:
            loss = torch.nn.functional.cross_entropy(model(images.float() / 255), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    print(batches)


if __name__ == "__main__":
    main()
