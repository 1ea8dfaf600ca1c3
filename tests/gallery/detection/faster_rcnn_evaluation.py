"""Faster R-CNN on MobileNet finds boxes, and the script counts the boxes above a threshold.

Needs: torchvision
Sizes depend on data.
"""

import torch
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_fpn
from torchvision.ops import box_iou

torch.manual_seed(0)
model = fasterrcnn_mobilenet_v3_large_fpn(weights=None, weights_backbone=None, num_classes=91)
model = model.eval().to("cuda")
truth = torch.tensor([[40.0, 40, 200, 300], [100, 50, 400, 260]], device="cuda")
found = matched = 0
with torch.inference_mode():
    for _ in range(3):
        images = [torch.rand(3, 720, 1280, device="cuda") for _ in range(16)]
        for result in model(images):
            kept = result["scores"] > 0.05
            boxes = result["boxes"][kept]
            found += len(boxes)
            if len(boxes):
                matched += int((box_iou(truth, boxes).amax(1) > 0.5).sum())
print(f"{found} boxes, {matched} of them right")
print("done: 48 images")
