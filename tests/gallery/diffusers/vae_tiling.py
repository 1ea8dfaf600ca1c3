"""An AutoencoderKL, offloaded layer by layer, decodes a large image in tiles and slices.

Needs: diffusers, transformers, accelerate
"""

import torch
from accelerate import cpu_offload
from diffusers import AutoencoderKL

torch.manual_seed(0)
vae = AutoencoderKL(
    block_out_channels=(128, 256, 512, 512),
    down_block_types=("DownEncoderBlock2D",) * 4,
    up_block_types=("UpDecoderBlock2D",) * 4,
    layers_per_block=2,
    latent_channels=4,
    sample_size=512,
).eval()
latents = torch.randn(2, 4, 128, 128, device="cuda")

vae.to("cuda")
with torch.no_grad():
    whole = vae.decode(latents[:1]).sample
del whole
vae.to("cpu")

vae.enable_tiling()
vae.enable_slicing()
cpu_offload(vae, torch.device("cuda"))
with torch.no_grad():
    images = vae.decode(latents).sample
print("done:", tuple(images.shape))
