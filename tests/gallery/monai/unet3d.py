"""monai's 3D U-Net trains on volumes with the Dice and cross entropy loss.

Needs: monai
Sizes depend on data.
"""

import torch
from monai.losses import DiceCELoss
from monai.metrics import DiceMetric
from monai.networks.nets import UNet

torch.manual_seed(0)
model = UNet(
    spatial_dims=3,
    in_channels=1,
    out_channels=4,
    channels=(32, 64, 128, 256),
    strides=(2, 2, 2),
    num_res_units=2,
).cuda()
criterion = DiceCELoss(to_onehot_y=True, softmax=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(3):
    volumes = torch.randn(2, 1, 96, 96, 96, device="cuda")
    labels = torch.randint(0, 4, (2, 1, 96, 96, 96), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = criterion(model(volumes), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

metric = DiceMetric(include_background=False)
model.eval()
with torch.no_grad():
    scores = model(volumes).argmax(1, keepdim=True)
    metric(
        torch.nn.functional.one_hot(scores[:, 0], 4).movedim(-1, 1),
        torch.nn.functional.one_hot(labels[:, 0], 4).movedim(-1, 1),
    )
print("done: 3 steps and a metric of", tuple(metric.aggregate().shape))
