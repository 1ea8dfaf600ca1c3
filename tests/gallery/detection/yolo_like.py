"""A detector trains with its own assignment loss; its validation suppresses overlapping boxes.

Needs: torchvision
Sizes depend on data.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torchvision.ops import batched_nms, box_iou, complete_box_iou_loss

CLASSES, SIZE, STRIDES = 80, 512, (8, 16, 32)


def conv(before, after, stride=1, kernel=3):
    layer = nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(after), nn.SiLU())


class Stage(nn.Module):
    def __init__(self, before, after, depth):
        super().__init__()
        self.enter = conv(before, after, 2)
        self.blocks = nn.ModuleList(
            nn.Sequential(conv(after, after // 2, 1, 1), conv(after // 2, after))
            for _ in range(depth)
        )

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks:
            x = x + block(x)
        return x


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(conv(3, 32), Stage(32, 64, 1), Stage(64, 128, 2))
        self.stages = nn.ModuleList([Stage(128, 256, 4), Stage(256, 512, 4), Stage(512, 512, 2)])
        self.heads = nn.ModuleList(nn.Conv2d(c, 4 + CLASSES, 1) for c in (256, 512, 512))

    def forward(self, x):
        x, boxes, scores = self.stem(x), [], []
        for stage, head, stride in zip(self.stages, self.heads, STRIDES, strict=True):
            x = stage(x)
            y = head(x).float().flatten(2).mT
            ys, xs = torch.meshgrid(
                *[torch.arange(n, device=x.device) + 0.5 for n in x.shape[2:]], indexing="ij"
            )
            centers = torch.stack([xs, ys], -1).view(-1, 2) * stride
            sides = y[..., :4].exp().clamp(max=1e3) * stride
            boxes.append(torch.cat([centers - sides[..., :2], centers + sides[..., 2:]], -1))
            scores.append(y[..., 4:])
        return torch.cat(boxes, 1), torch.cat(scores, 1)


def loss_of(boxes, scores, truths, classes):
    wanted, error, count = torch.zeros_like(scores), 0, 0
    for i, (truth, kinds) in enumerate(zip(truths, classes, strict=True)):
        with torch.no_grad():
            overlaps = box_iou(truth, boxes[i])
            fit = overlaps * scores[i][:, kinds].sigmoid().T.sqrt()
            best = torch.zeros_like(fit).scatter_(1, fit.topk(10, 1).indices, 1.0)
            owner, chosen = (best * (fit + 1e-9)).max(0).indices, best.amax(0) > 0
        mine = owner[chosen]
        error = error + complete_box_iou_loss(boxes[i][chosen], truth[mine], reduction="sum")
        wanted[i, chosen, kinds[mine]] = overlaps[mine, chosen]
        count += int(chosen.sum())
    return (error + F.binary_cross_entropy_with_logits(scores, wanted, reduction="sum")) / count


def detections(boxes, scores):
    for box, chance in zip(boxes, scores.sigmoid(), strict=True):
        best, kind = chance.max(-1)
        keep = best > 0.05
        box, best, kind = box[keep], best[keep], kind[keep]
        kept = batched_nms(box, best, kind, 0.65)[:300]
        yield torch.cat([box[kept], best[kept, None], kind[kept, None]], 1)


torch.manual_seed(0)
model = Detector().cuda().to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.937, nesterov=True)
scaler = torch.amp.GradScaler(init_scale=256.0)
for _ in range(3):
    images = torch.rand(16, 3, SIZE, SIZE).cuda().contiguous(memory_format=torch.channels_last)
    corners = torch.rand(16, 8, 2, device="cuda") * 300
    truths = torch.cat([corners, corners + 20 + torch.rand(16, 8, 2, device="cuda") * 180], -1)
    with torch.autocast("cuda", torch.float16):
        boxes, scores = model(images)
    loss = loss_of(boxes, scores, truths, torch.randint(CLASSES, (16, 8), device="cuda"))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
model.eval()
with torch.no_grad(), torch.autocast("cuda", torch.float16):
    found = list(detections(*model(torch.rand(32, 3, SIZE, SIZE, device="cuda"))))
print(sum(map(len, found)), "boxes")
print("done: 3 steps and a validation")
