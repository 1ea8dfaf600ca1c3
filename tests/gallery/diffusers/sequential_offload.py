"""A UNet2DModel denoises with sliced attention; its layers come from the host one by one.

Needs: diffusers, transformers, accelerate
"""

import torch
from diffusers import DDIMPipeline, DDIMScheduler, UNet2DModel

torch.manual_seed(0)
unet = UNet2DModel(
    sample_size=128,
    block_out_channels=(256, 512, 512, 1024),
    down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
)
pipeline = DDIMPipeline(unet.half(), DDIMScheduler())
pipeline.set_progress_bar_config(disable=True)
pipeline.enable_attention_slicing(1)
pipeline.enable_sequential_cpu_offload()
images = pipeline(batch_size=8, num_inference_steps=4, output_type="np").images
print("done:", images.shape)
