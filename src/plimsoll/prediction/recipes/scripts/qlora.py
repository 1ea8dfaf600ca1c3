"""Fine-tune a model by QLoRA: train small matrices beside frozen, made-up 4-bit weights."""

import argparse

import bitsandbytes
import peft
import torch
import transformers


def batch_of(model: torch.nn.Module, size: int, length: int) -> dict[str, torch.Tensor]:
    """Returns made-up data of the kind that the model takes, with labels, in host memory."""
    config = model.config
    if model.main_input_name == "pixel_values":
        side = getattr(config, "image_size", 224)
        images = torch.randn(size, config.num_channels, side, side)
        return {"pixel_values": images, "labels": torch.randint(config.num_labels, (size,))}
    tokens = torch.randint(config.get_text_config(decoder=True).vocab_size, (size, length))
    if model.main_input_name == "input_features":
        sound = torch.randn(size, config.num_mel_bins, 2 * config.max_source_positions)
        return {"input_features": sound, "labels": tokens}
    return {"input_ids": tokens, "labels": tokens}


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", required=True, help="a folder, a file or a name on the hub")
parser.add_argument("--head", default="CausalLM", help="which AutoModelFor... it is")
parser.add_argument("--rank", type=int, default=16)
parser.add_argument("--gradient-checkpointing", action="store_true")
parser.add_argument("--batch-size", type=int, default=1)
parser.add_argument("--seq-len", type=int, default=2048)
parser.add_argument("--steps", type=int, default=3)
options = parser.parse_args()

config = transformers.AutoConfig.from_pretrained(options.model)
kind = getattr(transformers, f"AutoModelFor{options.head}")
with torch.device("meta"):
    model = kind.from_config(config, dtype=torch.bfloat16)
zero = torch.zeros((), dtype=torch.bfloat16)
weights = {name: zero.expand(each.shape) for name, each in model.state_dict().items()}
bits = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.bfloat16}
four = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_use_double_quant=True, **bits)
how = {"quantization_config": four, "dtype": torch.bfloat16, "device_map": "cuda"}
model = model.from_pretrained(None, config=config, state_dict=weights, **how)
model.config.get_text_config(decoder=True).use_cache = False
model = peft.prepare_model_for_kbit_training(model, options.gradient_checkpointing)
adapters = peft.LoraConfig(r=options.rank, lora_alpha=32, target_modules="all-linear")
model = peft.get_peft_model(model, adapters).train()
learning = [each for each in model.parameters() if each.requires_grad]
optimizer = bitsandbytes.optim.AdamW8bit(learning, lr=1e-4)
for _ in range(options.steps):
    batch = batch_of(model, options.batch_size, options.seq_len)
    batch = {name: each.cuda() for name, each in batch.items()}
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(**batch).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(learning, 1.0)
    optimizer.step()
    optimizer.zero_grad()
