"""PrefetchLoader under Lightning: a data module that hands out batches on the GPU.

Mix `Prefetched` into a `LightningDataModule`, before it in the list of bases. Run, this goes
through an epoch as Lightning's Trainer does, and says where the time went.

plimsoll run --simulate H100 examples/data_lightning.py
"""

from types import SimpleNamespace
from typing import Any

import torch

from plimsoll import PrefetchLoader

try:
    from lightning import LightningDataModule
except ImportError:  # the mixin needs nothing of it
    LightningDataModule = object


class Prefetched:
    """Wraps the training loader, and leaves alone what is on the device already."""

    def train_dataloader(self) -> Any:
        """The module's own loader, copied ahead."""
        return PrefetchLoader(super().train_dataloader(), self.trainer.strategy.root_device)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, index: int) -> Any:
        """Training batches are there; others go as usual."""
        if self.trainer.training:
            return batch
        return super().transfer_batch_to_device(batch, device, index)


class Numbers(LightningDataModule):
    """Any data module."""

    def train_dataloader(self) -> Any:
        """A loader as it was."""
        return torch.utils.data.DataLoader(torch.arange(1024.0).view(-1, 4), batch_size=32)


class PrefetchedNumbers(Prefetched, Numbers):
    """The same, copied ahead."""


def main() -> None:
    """One epoch, with what the Trainer would say in place of it."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    module = PrefetchedNumbers()
    module.trainer = SimpleNamespace(training=True, strategy=SimpleNamespace(root_device=device))
    batches = module.train_dataloader()
    for index, batch in enumerate(batches):
        module.transfer_batch_to_device(batch, device, index).square().mean()
    print(batches)


if __name__ == "__main__":
    main()
