"""DeepLabV3 trains with an auxiliary head to label pixels, and fills a confusion matrix.

Needs: torchvision
Sizes depend on data.
"""

import torch
import torch.nn.functional as F
from torchvision.models.segmentation import deeplabv3_resnet50

CLASSES = 21
torch.manual_seed(0)
model = deeplabv3_resnet50(
    weights=None, weights_backbone=None, num_classes=CLASSES, aux_loss=True
).cuda()
groups = [
    {"params": model.backbone.parameters(), "lr": 0.01},
    {"params": model.classifier.parameters(), "lr": 0.01},
    {"params": model.aux_classifier.parameters(), "lr": 0.1},
]
optimizer = torch.optim.SGD(groups, momentum=0.9, weight_decay=1e-4)
schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=30, power=0.9)
model.train()
for _ in range(2):
    images = torch.randn(4, 3, 480, 480, device="cuda")
    pixels = torch.randint(CLASSES, (4, 480, 480), device="cuda")
    pixels[:, :8] = 255
    out = model(images)
    loss = F.cross_entropy(out["out"], pixels, ignore_index=255)
    loss = loss + 0.5 * F.cross_entropy(out["aux"], pixels, ignore_index=255)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()

model.eval()
confusion = torch.zeros(CLASSES, CLASSES, dtype=torch.int64, device="cuda")
with torch.inference_mode():
    guesses = model(torch.randn(4, 3, 520, 520, device="cuda"))["out"].argmax(1).flatten()
    truth = torch.randint(CLASSES, (4, 520, 520), device="cuda").flatten()
    confusion += torch.bincount(CLASSES * truth + guesses, minlength=CLASSES**2).view(CLASSES, -1)
assert confusion.shape == (CLASSES, CLASSES)
print("done: 2 steps and an evaluation")
