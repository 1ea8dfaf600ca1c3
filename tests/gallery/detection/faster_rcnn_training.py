"""Faster R-CNN trains on images of different sizes.

Needs: torchvision
Sizes depend on data.
"""

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.models.detection import fasterrcnn_resnet50_fpn


class Scenes(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        height, width = (480, 640) if index % 3 else (600, 500)
        image = torch.rand(3, height, width, generator=generator)
        count = int(torch.randint(2, 9, (1,), generator=generator))
        corners = torch.rand(count, 2, generator=generator) * 300
        sizes = torch.rand(count, 2, generator=generator) * 150 + 20
        labels = torch.randint(1, 21, (count,), generator=generator)
        return image, {"boxes": torch.cat([corners, corners + sizes], 1), "labels": labels}


def collate(batch):
    return tuple(zip(*batch, strict=True))


torch.manual_seed(0)
device = torch.device("cuda")
model = fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=21).to(device)
optimizer = torch.optim.SGD(
    [p for p in model.parameters() if p.requires_grad], lr=0.005, momentum=0.9, weight_decay=5e-4
)
loader = DataLoader(Scenes(), batch_size=4, shuffle=True, collate_fn=collate)
model.train()
for images, targets in loader:
    images = [image.to(device) for image in images]
    targets = [{key: value.to(device) for key, value in each.items()} for each in targets]
    losses = model(images, targets)
    loss = sum(losses.values())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print({name: round(value.item(), 3) for name, value in losses.items()})
print("done: 3 steps")
