"""A ConvNeXt teaches a Swin transformer, which learns from the ConvNeXt's predictions.

Needs: torchvision
"""

import torch
import torch.nn.functional as F
from torchvision.models import convnext_base, swin_v2_t

torch.manual_seed(0)
teacher = convnext_base(weights=None).cuda().eval().requires_grad_(False)
student = swin_v2_t(weights=None).cuda()
optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3, weight_decay=0.05)
for _ in range(3):
    images = torch.randn(32, 3, 224, 224, device="cuda")
    labels = torch.randint(1000, (32,), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        with torch.no_grad():
            answers = teacher(images)
        logits = student(images)
    soft = F.kl_div(
        F.log_softmax(logits.float() / 2, -1),
        F.softmax(answers.float() / 2, -1),
        reduction="batchmean",
    )
    loss = 4 * soft + F.cross_entropy(logits.float(), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done: 3 steps")
