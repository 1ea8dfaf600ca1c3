"""A UNet2DConditionModel of diffusers learns to denoise, with an EMA of its weights.

Needs: diffusers, transformers, accelerate
"""

import torch
from diffusers import DDPMScheduler, UNet2DConditionModel
from diffusers.training_utils import EMAModel

torch.manual_seed(0)
unet = UNet2DConditionModel(
    sample_size=32,
    block_out_channels=(192, 384, 768),
    down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
    cross_attention_dim=768,
    attention_head_dim=8,
).to("cuda")
unet.enable_gradient_checkpointing()
average = EMAModel(unet.parameters(), decay=0.999)
average.to("cuda")
noise_scheduler = DDPMScheduler(num_train_timesteps=1000)
optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-4)

for _ in range(3):
    latents = torch.randn(16, 4, 32, 32, device="cuda")
    text = torch.randn(16, 77, 768, device="cuda")
    noise = torch.randn_like(latents)
    steps = torch.randint(0, 1000, (16,), device="cuda")
    noisy = noise_scheduler.add_noise(latents, noise, steps)
    with torch.autocast("cuda", torch.bfloat16):
        predicted = unet(noisy, steps, encoder_hidden_states=text).sample
        loss = torch.nn.functional.mse_loss(predicted.float(), noise)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    average.step(unet.parameters())
print("done: 3 steps")
