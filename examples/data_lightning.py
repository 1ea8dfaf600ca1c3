"""PrefetchLoader with Lightning: a data module that hands out batches on the GPU.

Give your data module the base class `Prefetched`, before `LightningDataModule`. As a script, this
file runs one epoch as Lightning's Trainer does, and prints where the time went.

plimsoll run --simulate H100 examples/data_lightning.py
"""

from types import SimpleNamespace
from typing import Any

import torch

from plimsoll import PrefetchLoader

try:
    from lightning import LightningDataModule
except ImportError:  # `Prefetched` also works without Lightning
    LightningDataModule = object


class Prefetched:
    """Copies training batches to the device ahead of time. Lightning copies all other batches."""

    def train_dataloader(self) -> Any:
        """Return the module's own loader, wrapped so that it copies batches ahead."""
        return PrefetchLoader(super().train_dataloader(), self.trainer.strategy.root_device)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, index: int) -> Any:
        """Return a training batch as it is, because it is on the device; copy any other batch."""
        if self.trainer.training:
            return batch
        return super().transfer_batch_to_device(batch, device, index)


class Numbers(LightningDataModule):
    """Stands for any data module."""

    def train_dataloader(self) -> Any:
        """Return an ordinary loader."""
        return torch.utils.data.DataLoader(torch.arange(1024.0).view(-1, 4), batch_size=32)


class PrefetchedNumbers(Prefetched, Numbers):
    """Stands for your data module with `Prefetched` added."""


def main() -> None:
    """Run one epoch, with a stand-in for Lightning's Trainer."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    module = PrefetchedNumbers()
    module.trainer = SimpleNamespace(training=True, strategy=SimpleNamespace(root_device=device))
    batches = module.train_dataloader()
    for index, batch in enumerate(batches):
        module.transfer_batch_to_device(batch, device, index).square().mean()
    print(batches)


if __name__ == "__main__":
    main()
