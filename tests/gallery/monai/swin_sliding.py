"""monai's SwinUNETR segments a volume larger than its window, window by window.

Needs: monai, einops
"""

import torch
from monai.inferers import sliding_window_inference
from monai.networks.nets import SwinUNETR

torch.manual_seed(0)
model = SwinUNETR(in_channels=1, out_channels=14, feature_size=24).cuda().eval()
volume = torch.randn(1, 1, 160, 160, 128, device="cuda")
with torch.no_grad(), torch.autocast("cuda", torch.float16):
    scores = sliding_window_inference(
        volume, roi_size=(96, 96, 96), sw_batch_size=2, predictor=model, overlap=0.25
    )
print("done:", tuple(scores.argmax(1).shape))
