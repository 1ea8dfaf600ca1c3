"""Trains a vision transformer classifier, then runs inference without gradients."""

import torch
import torchvision

model = torchvision.models.vit_b_32().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(2):
    images = torch.randn(64, 3, 224, 224, device="cuda")
    labels = torch.randint(1000, (64,), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
model.eval()
with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
    model(torch.randn(256, 3, 224, 224, device="cuda"))
