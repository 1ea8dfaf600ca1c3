"""A Stable Diffusion pipeline of random weights draws images, one model at a time on the GPU.

Needs: diffusers, transformers, accelerate
"""

import torch
from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel


class Tokens:
    """Stands in for a tokenizer; has only what the pipeline uses."""

    model_max_length = 77

    def __init__(self):
        self.added_tokens_encoder = {}

    def tokenize(self, text):
        return text.split()

    def __call__(self, text, **_):
        texts = [text] if isinstance(text, str) else text
        ids = torch.arange(77).repeat(len(texts), 1)
        return type("Encoding", (), {"input_ids": ids, "attention_mask": torch.ones_like(ids)})()


torch.manual_seed(0)
unet = UNet2DConditionModel(
    sample_size=64,
    block_out_channels=(320, 640, 1280),
    down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
    cross_attention_dim=768,
    attention_head_dim=8,
)
vae = AutoencoderKL(
    block_out_channels=(128, 256, 512, 512),
    down_block_types=("DownEncoderBlock2D",) * 4,
    up_block_types=("UpDecoderBlock2D",) * 4,
    layers_per_block=2,
    latent_channels=4,
)
text_encoder = CLIPTextModel(CLIPTextConfig(hidden_size=768, intermediate_size=3072))
pipeline = StableDiffusionPipeline(
    vae=vae.half(),
    text_encoder=text_encoder.half(),
    tokenizer=Tokens(),
    unet=unet.half(),
    scheduler=DDIMScheduler(),
    safety_checker=None,
    feature_extractor=None,
    requires_safety_checker=False,
)
pipeline.set_progress_bar_config(disable=True)
pipeline.enable_model_cpu_offload()
images = pipeline(["a cat", "a dog"], num_inference_steps=4, output_type="np").images
print("done:", images.shape)
