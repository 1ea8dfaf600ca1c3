"""Train all parameters of one of timm's models: in bfloat16, or in float32 under autocast.

Weights and data are made up; `pretrained=True` reads real weights.
"""

import argparse

import timm
import torch

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", required=True, help="timm's name, local-dir:... or hf-hub:...")
parser.add_argument("--classes", type=int, default=1000)
parser.add_argument("--weights", choices=["bfloat16", "float32"], default="bfloat16")
parser.add_argument("--gradient-checkpointing", action="store_true")
parser.add_argument("--batch-size", type=int, default=1)
parser.add_argument("--steps", type=int, default=3)
options = parser.parse_args()

model = timm.create_model(options.model, num_classes=options.classes)
model = model.to("cuda", getattr(torch, options.weights)).train()
if options.gradient_checkpointing:
    model.set_grad_checkpointing()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05, fused=True)
for _ in range(options.steps):
    images = torch.randn(options.batch_size, *model.pretrained_cfg["input_size"]).cuda()
    labels = torch.randint(options.classes, (options.batch_size,)).cuda()
    with torch.autocast("cuda", torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
