"""RetinaNet trains with the focal loss in fp16 and is evaluated after each epoch.

Needs: torchvision
Sizes depend on data.
"""

import torch
from torchvision.models.detection import retinanet_resnet50_fpn_v2

torch.manual_seed(0)
model = retinanet_resnet50_fpn_v2(
    weights=None, weights_backbone=None, num_classes=20, min_size=512, max_size=512
).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05)
scaler = torch.amp.GradScaler()


def batch(count):
    images = [torch.rand(3, 512, 512, device="cuda") for _ in range(count)]
    targets = []
    for index in range(count):
        corners = torch.rand(index % 4 + 1, 2, device="cuda") * 256
        sizes = torch.rand(index % 4 + 1, 2, device="cuda") * 200 + 30
        labels = torch.randint(20, (index % 4 + 1,), device="cuda")
        targets.append({"boxes": torch.cat([corners, corners + sizes], 1), "labels": labels})
    return images, targets


for _ in range(2):
    model.train()
    for _ in range(4):
        images, targets = batch(8)
        with torch.autocast("cuda", torch.float16):
            losses = model(images, targets)
            loss = losses["classification"] + losses["bbox_regression"]
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    model.eval()
    with torch.no_grad():
        results = model(batch(8)[0])
    print(sum(len(result["boxes"]) for result in results), "boxes")
print("done: 2 epochs")
