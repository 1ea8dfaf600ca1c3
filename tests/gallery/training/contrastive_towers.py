"""An image tower and a text tower learn to agree, as CLIP does, with a learnt temperature."""

import math

import torch
import torch.nn.functional as F
from torch import nn

WIDTH = 512


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        layers, before = [], 3
        for after in (64, 128, 256, 512):
            layers += [
                nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(),
            ]
            layers += [
                nn.Conv2d(after, after, 3, padding=1, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(),
            ]
            before = after
        self.body = nn.Sequential(
            *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, WIDTH)
        )

    def forward(self, images):
        return F.normalize(self.body(images), dim=-1)


class Texts(nn.Module):
    def __init__(self, words=49408, length=77):
        super().__init__()
        self.words = nn.Embedding(words, WIDTH)
        self.places = nn.Parameter(torch.empty(length, WIDTH).normal_(std=0.01))
        layer = nn.TransformerEncoderLayer(
            WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, ids):
        x = self.body(self.words(ids) + self.places, mask=self.mask, is_causal=True)
        x = x[torch.arange(len(ids), device=ids.device), ids.argmax(-1)]
        return F.normalize(self.out(x), dim=-1)


torch.manual_seed(0)
images, texts = Images().cuda().to(memory_format=torch.channels_last), Texts().cuda()
scale = nn.Parameter(torch.tensor(math.log(1 / 0.07), device="cuda"))
optimizer = torch.optim.AdamW([*images.parameters(), *texts.parameters(), scale], lr=5e-4)
for _ in range(3):
    pictures = torch.randn(128, 3, 128, 128, device="cuda").contiguous(
        memory_format=torch.channels_last
    )
    captions = torch.randint(49406, (128, 77), device="cuda")
    captions[:, 40] = 49407
    with torch.autocast("cuda", torch.float16):
        seen, read = images(pictures), texts(captions)
        logits = scale.exp() * seen @ read.T
    truth = torch.arange(len(logits), device="cuda")
    loss = (F.cross_entropy(logits.float(), truth) + F.cross_entropy(logits.T.float(), truth)) / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        scale.clamp_(0, math.log(100))
print("done: 3 steps")
