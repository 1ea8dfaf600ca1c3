"""A DiT of diffusers takes training steps in bf16 with flow matching's targets.

Needs: diffusers, transformers, accelerate
"""

import torch
from diffusers import SD3Transformer2DModel

torch.manual_seed(0)
model = SD3Transformer2DModel(
    sample_size=64,
    patch_size=2,
    in_channels=16,
    num_layers=8,
    attention_head_dim=64,
    num_attention_heads=12,
    joint_attention_dim=1024,
    caption_projection_dim=768,
    pooled_projection_dim=512,
    out_channels=16,
    pos_embed_max_size=64,
).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

for _ in range(3):
    latents = torch.randn(8, 16, 64, 64, device="cuda", dtype=torch.bfloat16)
    text = torch.randn(8, 128, 1024, device="cuda", dtype=torch.bfloat16)
    pooled = torch.randn(8, 512, device="cuda", dtype=torch.bfloat16)
    noise = torch.randn_like(latents)
    sigmas = torch.rand(8, device="cuda", dtype=torch.bfloat16)
    share = sigmas.view(-1, 1, 1, 1)
    noisy = (1 - share) * latents + share * noise
    predicted = model(
        noisy, encoder_hidden_states=text, pooled_projections=pooled, timestep=sigmas * 1000
    ).sample
    loss = torch.nn.functional.mse_loss(predicted.float(), (noise - latents).float())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("done: 3 steps")
