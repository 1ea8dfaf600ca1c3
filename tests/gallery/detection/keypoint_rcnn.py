"""Keypoint R-CNN trains on people's joints, then detects joints.

Needs: torchvision
Sizes depend on data.
"""

import torch
from torchvision.models.detection import keypointrcnn_resnet50_fpn

torch.manual_seed(0)
model = keypointrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_keypoints=17).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)


def people(count):
    corners = torch.rand(count, 2, device="cuda") * 200
    sizes = torch.rand(count, 2, device="cuda") * 200 + 60
    inside = torch.rand(count, 17, 2, device="cuda")
    joints = corners[:, None] + inside * sizes[:, None]
    visible = torch.ones(count, 17, 1, device="cuda")
    return {
        "boxes": torch.cat([corners, corners + sizes], 1),
        "labels": torch.ones(count, dtype=torch.int64, device="cuda"),
        "keypoints": torch.cat([joints, visible], 2),
    }


model.train()
for _ in range(2):
    images = [torch.rand(3, 480, 480, device="cuda") for _ in range(2)]
    losses = model(images, [people(2), people(4)])
    optimizer.zero_grad()
    sum(losses.values()).backward()
    optimizer.step()

model.eval()
with torch.no_grad():
    (result,) = model([torch.rand(3, 480, 640, device="cuda")])
assert result["keypoints"].shape[1:] == (17, 3)
print("done: 2 steps and an image")
