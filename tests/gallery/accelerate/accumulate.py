"""Trains a ViT by accelerate in bfloat16 with accumulated gradients, and saves the training state.

Needs: transformers, accelerate
"""

import tempfile

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from transformers import ViTConfig, ViTForImageClassification, get_cosine_schedule_with_warmup


def main() -> None:
    torch.manual_seed(0)
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
    config = ViTConfig(hidden_size=768, num_hidden_layers=8, num_labels=100)
    model = ViTForImageClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 1, 10)
    images = torch.randn(96, 3, 224, 224)
    loader = DataLoader(TensorDataset(images, torch.randint(100, (96,))), batch_size=16)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    steps = 0
    for pixels, labels in loader:
        with accelerator.accumulate(model):
            loss = model(pixel_values=pixels, labels=labels).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                steps += 1
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    losses = accelerator.gather_for_metrics(loss.detach())
    assert losses.numel() == 1
    with tempfile.TemporaryDirectory() as folder:
        accelerator.save_state(folder)
        accelerator.load_state(folder)
    print(f"done: {steps} steps")


main()
