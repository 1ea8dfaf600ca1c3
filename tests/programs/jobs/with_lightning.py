"""Trains with Lightning on two devices. Lightning starts the second process; no launcher does."""

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Model(lightning.LightningModule):  # type: ignore[misc]  # the base class is untyped here
    """A model of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """Returns the loss of a batch."""
        return self.layers(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Returns an optimizer."""
        return torch.optim.AdamW(self.parameters())


def main() -> None:
    """Trains two steps."""
    trainer = lightning.Trainer(
        devices=2,
        accelerator="gpu",
        strategy="ddp",
        max_steps=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    model = Model()
    trainer.fit(model, DataLoader(TensorDataset(torch.randn(32, 64)), batch_size=4))
    rank, device = trainer.global_rank, trainer.strategy.root_device
    print(f"rank {rank} of {trainer.world_size} on {device}", flush=True)


if __name__ == "__main__":
    main()
