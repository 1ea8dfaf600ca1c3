"""SSD trains with hard negatives, then suppresses overlapping boxes.

Needs: torchvision
Sizes depend on data.
"""

import torch
from torchvision.models.detection import ssd300_vgg16

torch.manual_seed(0)
model = ssd300_vgg16(weights=None, weights_backbone=None, num_classes=21).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-4)
model.train()
for step in range(3):
    images = [torch.rand(3, 375, 500, device="cuda") for _ in range(16)]
    targets = []
    for _ in images:
        left_top = torch.rand(3, 2) * 150
        right_bottom = left_top + torch.rand(3, 2) * 200 + 10
        boxes = torch.cat([left_top, right_bottom], 1).to("cuda")
        targets.append({"boxes": boxes, "labels": torch.randint(1, 21, (3,), device="cuda")})
    losses = model(images, targets)
    loss = sum(loss for loss in losses.values())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: {loss.item():.2f}")
model.eval()
with torch.inference_mode():
    results = model([torch.rand(3, 375, 500, device="cuda") for _ in range(16)])
assert len(results) == 16
print("done: 3 steps and 16 images")
