"""A vision transformer trains with 8-bit Lion, its head with 8-bit momentum.

Needs: bitsandbytes, transformers
"""

import bitsandbytes as bnb
import torch
from transformers import ViTConfig, ViTForImageClassification

BATCH, STEPS = 32, 3


def main() -> None:
    torch.manual_seed(0)
    model = ViTForImageClassification(ViTConfig(num_labels=1000)).cuda()
    lion = bnb.optim.Lion8bit(model.vit.parameters(), lr=1e-4, weight_decay=0.1)
    sgd = bnb.optim.SGD8bit(model.classifier.parameters(), lr=1e-2, momentum=0.9)
    for _ in range(STEPS):
        images = torch.randn(BATCH, 3, 224, 224, device="cuda")
        labels = torch.randint(0, 1000, (BATCH,), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(pixel_values=images, labels=labels).loss
        loss.backward()
        for optimizer in (lion, sgd):
            optimizer.step()
            optimizer.zero_grad()
    print(f"done: {STEPS} steps with 8-bit Lion")


main()
