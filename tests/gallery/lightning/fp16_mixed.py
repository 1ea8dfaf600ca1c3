"""Lightning trains a small U-Net with a GradScaler (16-mixed), then predicts.

Needs: lightning
"""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def block(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class Segmenter(lightning.LightningModule):
    def __init__(self, width=64, classes=20):
        super().__init__()
        self.down = nn.ModuleList([block(3, width), block(width, 2 * width)])
        self.middle = block(2 * width, 4 * width)
        self.rise = nn.ModuleList(
            [
                nn.ConvTranspose2d(4 * width, 2 * width, 2, 2),
                nn.ConvTranspose2d(2 * width, width, 2, 2),
            ]
        )
        self.up = nn.ModuleList([block(4 * width, 2 * width), block(2 * width, width)])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, images):
        kept = []
        for down in self.down:
            images = down(images)
            kept.append(images)
            images = nn.functional.max_pool2d(images, 2)
        images = self.middle(images)
        for rise, up in zip(self.rise, self.up, strict=True):
            images = up(torch.cat([rise(images), kept.pop()], 1))
        return self.head(images)

    def training_step(self, batch, _):
        images, masks = batch
        return nn.functional.cross_entropy(self(images), masks)

    def predict_step(self, batch, _):
        return self(batch[0]).argmax(1)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


lightning.seed_everything(0)
loader = DataLoader(
    TensorDataset(torch.randn(40, 3, 256, 256), torch.randint(0, 20, (40, 256, 256))), batch_size=4
)
trainer = lightning.Trainer(
    accelerator="gpu",
    devices=1,
    precision="16-mixed",
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
model = Segmenter()
trainer.fit(model, loader)
masks = trainer.predict(model, loader)
print("done:", len(masks), "batches predicted")
