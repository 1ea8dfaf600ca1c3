"""Fine-tune a diffusion model by LoRA, with made-up data that is already encoded."""

import argparse
import inspect

import diffusers
import peft
import torch


def inputs_of(model: torch.nn.Module, size: int, length: int, side: int) -> dict[str, object]:
    """Returns made-up values for all inputs that this model takes."""
    config, asked = model.config, inspect.signature(model.forward).parameters
    widths = ("joint_attention_dim", "caption_channels", "cross_attention_dim")
    width = next((config[name] for name in widths if config.get(name)), 1)
    time, pooled = torch.randint(1000, (size,)), config.get("pooled_projection_dim") or 1280
    packed, square = [side * side // 4, config.in_channels], [config.in_channels, side, side]
    latents = torch.randn(size, *(packed if "img_ids" in asked else square))  # packed for Flux
    known = {"sample": latents, "hidden_states": latents, "timestep": time, "class_labels": time}
    known |= {"encoder_hidden_states": torch.randn(size, length, width)}
    known |= {"img_ids": torch.ones(side * side // 4, 3), "txt_ids": torch.ones(length, 3)}
    known |= {"pooled_projections": torch.randn(size, pooled)}
    known |= {"guidance": torch.ones(size)} if config.get("guidance_embeds") else {}
    xl = {"text_embeds": torch.randn(size, pooled), "time_ids": torch.ones(size, 6)}
    known |= {"added_cond_kwargs": xl} if config.get("addition_embed_type") else {}
    if getattr(model, "use_additional_conditions", False):  # for example PixArt
        more = {"resolution": torch.ones(size, 2), "aspect_ratio": torch.ones(size, 1)}
        known |= {"added_cond_kwargs": more}
    return {name: each for name, each in known.items() if name in asked}


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", required=True, help="a folder, a file or a name on the hub")
parser.add_argument("--subfolder", help="of a pipeline: transformer or unet")
parser.add_argument("--rank", type=int, default=16)
parser.add_argument("--gradient-checkpointing", action="store_true")
parser.add_argument("--batch-size", type=int, default=1)
parser.add_argument("--seq-len", type=int, default=256, help="of the text")
parser.add_argument("--latent-size", type=int, help="height and width; by default the model's own")
options = parser.parse_args()

config = diffusers.AutoModel.load_config(options.model, subfolder=options.subfolder)
torch.set_default_dtype(torch.bfloat16)
torch.set_default_device("cuda")
model = getattr(diffusers, config["_class_name"]).from_config(config)
adapters = peft.LoraConfig(r=options.rank, target_modules=["to_q", "to_k", "to_v", "to_out.0"])
peft.inject_adapter_in_model(adapters, model)
if options.gradient_checkpointing:
    model.enable_gradient_checkpointing()
side = options.latent_size or model.config.get("sample_size") or 128
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
for _ in range(3):
    inputs = inputs_of(model, options.batch_size, options.seq_len, side)
    with torch.autocast("cuda", torch.bfloat16):
        found = model(**inputs).sample.float()
        loss = torch.nn.functional.mse_loss(found, torch.randn_like(found))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
