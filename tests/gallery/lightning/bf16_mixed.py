"""Lightning trains a transformer in bf16-mixed, accumulates, validates and checkpoints.

Needs: lightning, torchmetrics
Sizes depend on data.
"""

import tempfile

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy


class Tagger(lightning.LightningModule):
    def __init__(self, words=30000, width=768, tags=64):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 12, 4 * width, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)
        self.head = nn.Linear(width, tags)
        self.accuracy = MulticlassAccuracy(tags)

    def forward(self, tokens):
        return self.head(self.encoder(self.embedding(tokens)))

    def training_step(self, batch, _):
        tokens, tags = batch
        loss = nn.functional.cross_entropy(self(tokens).flatten(0, 1), tags.flatten())
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _):
        tokens, tags = batch
        self.accuracy(self(tokens).flatten(0, 1), tags.flatten())
        self.log("accuracy", self.accuracy, on_epoch=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-4)


def rows(count):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 30000, (count, 256), generator=generator)
    return DataLoader(TensorDataset(tokens, tokens % 64), batch_size=16)


lightning.seed_everything(0)
with tempfile.TemporaryDirectory() as folder:
    trainer = lightning.Trainer(
        accelerator="gpu",
        devices=1,
        precision="bf16-mixed",
        max_epochs=1,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        callbacks=[ModelCheckpoint(folder, monitor="accuracy", mode="max")],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Tagger(), rows(64), rows(32))
print("done:", trainer.global_step, "steps")
