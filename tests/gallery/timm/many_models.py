"""Six of timm's models, one after the other, take a training step each.

Needs: timm
"""

import timm
import torch

NAMES = (
    "vit_small_patch16_224",
    "swin_tiny_patch4_window7_224",
    "efficientnet_b0",
    "regnety_016",
    "mixer_s16_224",
    "resnetv2_50",
)

torch.manual_seed(0)
for name in NAMES:
    model = timm.create_model(name, num_classes=10).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images = torch.randn(32, 3, 224, 224, device="cuda")
    labels = torch.randint(0, 10, (32,), device="cuda")
    for _ in range(2):
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    del model, optimizer, loss
    torch.cuda.empty_cache()
print("done:", len(NAMES), "models")
