"""Trains a ViT on one rank by DeepSpeed: ZeRO stage 1, its fused Adam, and the loss scale of fp16.

Needs: deepspeed, timm
Only simulated.
"""

import os

import deepspeed
import timm
import torch

os.environ.update(
    RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29513"
)
torch.manual_seed(0)
model = timm.create_model("vit_small_patch16_224", num_classes=100)
engine, optimizer, _, _ = deepspeed.initialize(
    model=model,
    model_parameters=model.parameters(),
    config={
        "train_micro_batch_size_per_gpu": 64,
        "fp16": {"enabled": True, "initial_scale_power": 12},
        "zero_optimization": {"stage": 1},
        "optimizer": {"type": "Adam", "params": {"lr": 1e-4, "weight_decay": 0.05}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}},
    },
)
for _ in range(3):
    images = torch.randn(64, 3, 224, 224, device=engine.device, dtype=torch.half)
    labels = torch.randint(0, 100, (64,), device=engine.device)
    loss = torch.nn.functional.cross_entropy(engine(images).float(), labels)
    engine.backward(loss)
    engine.step()
print("done:", engine.global_steps, "steps")
