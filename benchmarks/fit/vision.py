"""Trains a vision transformer (ViT-B/16 of Transformers) in fp32: AdamW, augmented batches."""

import argparse

import torch
from transformers import ViTConfig, ViTForImageClassification


def main() -> None:
    """Trains for a few steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=96)
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = ViTForImageClassification(ViTConfig(num_labels=1000)).to("cuda")
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05)
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    for step in range(options.steps):
        images = torch.randn(options.batch_size, 3, 224, 224, device="cuda")
        labels = torch.randint(0, 1000, (options.batch_size,), device="cuda")
        images = images.flip(-1)
        logits = model(pixel_values=images).logits
        loss = criterion(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
