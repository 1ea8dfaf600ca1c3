"""ResNet-50 trains like torchvision's reference: augmentation, averaged weights, channels last.

Needs: torchvision
"""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torchvision.models import resnet50
from torchvision.transforms import v2

torch.manual_seed(0)
model = resnet50(weights=None).cuda().to(memory_format=torch.channels_last)
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9998))
augment = v2.Compose(
    [
        v2.RandomHorizontalFlip(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
    ]
)
mix = v2.CutMix(num_classes=1000)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, weight_decay=2e-5)
scaler = torch.amp.GradScaler()
for step in range(8):
    images = torch.randint(256, (32, 3, 224, 224), dtype=torch.uint8).cuda(non_blocking=True)
    labels = torch.randint(1000, (32,)).cuda(non_blocking=True)
    images, labels = mix(augment(images), labels)
    images = images.contiguous(memory_format=torch.channels_last)
    with torch.autocast("cuda", torch.float16):
        loss = criterion(model(images), labels)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    if step % 2 == 0:
        average.update_parameters(model)
average.eval()
with torch.inference_mode():
    average(torch.rand(64, 3, 224, 224, device="cuda")).topk(5)
print("done: 8 steps and an evaluation")
