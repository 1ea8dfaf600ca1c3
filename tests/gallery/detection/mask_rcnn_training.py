"""Mask R-CNN trains on four images with masks.

Needs: torchvision
Sizes depend on data.
"""

import torch
from torchvision.models.detection import maskrcnn_resnet50_fpn


def scene(count, size=512):
    image = torch.rand(3, size, size)
    corners = torch.randint(0, size // 2, (count, 2)).float()
    boxes = torch.cat([corners, corners + torch.randint(32, size // 2, (count, 2))], 1)
    masks = torch.zeros(count, size, size, dtype=torch.uint8)
    for mask, (left, top, right, bottom) in zip(masks, boxes.int().tolist(), strict=True):
        mask[top:bottom, left:right] = 1
    return image, {"boxes": boxes, "labels": torch.randint(1, 91, (count,)), "masks": masks}


torch.manual_seed(0)
model = maskrcnn_resnet50_fpn(weights=None, weights_backbone=None).cuda().train()
parameters = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.SGD(parameters, lr=0.02, momentum=0.9)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.001, total_iters=100)
for _ in range(3):
    images, targets = zip(*[scene(count) for count in (3, 5, 8, 4)], strict=True)
    images = [image.cuda() for image in images]
    targets = [{key: value.cuda() for key, value in each.items()} for each in targets]
    losses = model(images, targets)
    loss = sum(losses.values())
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(parameters, 10.0)
    optimizer.step()
    schedule.step()
print("done: 3 steps")
