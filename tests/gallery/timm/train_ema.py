"""timm's ConvNeXt trains with mixup, an EMA and drop path, then evaluates.

Needs: timm
"""

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV2

torch.manual_seed(0)
model = timm.create_model("convnext_tiny", num_classes=100, drop_path_rate=0.1).cuda()
average = ModelEmaV2(model, decay=0.999)
mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=100)
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
schedule = CosineLRScheduler(optimizer, t_initial=10)
criterion = SoftTargetCrossEntropy()
scaler = torch.amp.GradScaler()

for epoch in range(3):
    images = torch.randn(32, 3, 224, 224, device="cuda")
    labels = torch.randint(0, 100, (32,), device="cuda")
    images, targets = mixup(images, labels)
    with torch.autocast("cuda", torch.float16):
        loss = criterion(model(images), targets)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    average.update(model)
    schedule.step(epoch + 1)

average.module.eval()
with torch.inference_mode():
    scores = average.module(torch.randn(64, 3, 224, 224, device="cuda"))
print("done:", tuple(scores.shape))
