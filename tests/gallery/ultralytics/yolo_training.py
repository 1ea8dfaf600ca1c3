"""A YOLO11 made from its yaml trains with ultralytics' own loss, then detects boxes.

Needs: ultralytics, torchvision
Sizes depend on data.
"""

import torch
from ultralytics.cfg import get_cfg
from ultralytics.nn.tasks import DetectionModel
from ultralytics.utils.nms import non_max_suppression

torch.manual_seed(0)
model = DetectionModel("yolo11s.yaml", nc=20, verbose=False).cuda()
model.args = get_cfg()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.937, nesterov=True)
scaler = torch.amp.GradScaler()
for _ in range(3):
    boxes = torch.rand(96, 4)
    batch = {
        "img": torch.rand(16, 3, 640, 640, device="cuda"),
        "batch_idx": torch.arange(96) // 6,
        "cls": torch.randint(0, 20, (96, 1)).float(),
        "bboxes": torch.cat([0.25 + boxes[:, :2] / 2, 0.1 + boxes[:, 2:] / 5], 1),
    }
    with torch.autocast("cuda", torch.float16):
        loss, parts = model(batch)
    optimizer.zero_grad()
    scaler.scale(loss.sum()).backward()
    scaler.step(optimizer)
    scaler.update()

model.eval()
with torch.inference_mode():
    found = non_max_suppression(model(batch["img"]), conf_thres=0.001, iou_thres=0.7)
print("done:", len(found), "images")
