"""Generate text: read a prompt, then add tokens to it one by one, with a cache.

Weights and data are made up; `from_pretrained` instead of `from_config` reads real weights.
"""

import argparse

import torch
import transformers


def prompt_of(model: torch.nn.Module, size: int, length: int) -> dict[str, torch.Tensor]:
    """Returns the prompt, in host memory: text, or half a minute of sound."""
    config = model.config
    if model.main_input_name == "input_features":
        sound = torch.randn(size, config.num_mel_bins, 2 * config.max_source_positions)
        return {"input_features": sound.to(model.dtype)}
    tokens = torch.randint(config.get_text_config(decoder=True).vocab_size, (size, length))
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", required=True, help="a folder, a file or a name on the hub")
parser.add_argument("--head", default="CausalLM", help="which AutoModelFor... it is")
parser.add_argument("--weights", choices=["bfloat16", "float16", "float32"], default="bfloat16")
parser.add_argument("--attention", help="sdpa, eager, ...; by default sdpa, if it has that")
parser.add_argument("--batch-size", type=int, default=1)
parser.add_argument("--seq-len", type=int, default=2048, help="of the prompt")
parser.add_argument("--new-tokens", type=int, default=64)
options = parser.parse_args()

dtype = getattr(torch, options.weights)
config = transformers.AutoConfig.from_pretrained(options.model)
kind = getattr(transformers, f"AutoModelFor{options.head}")
with torch.device("cuda"):
    model = kind.from_config(config, dtype=dtype, attn_implementation=options.attention)
model.eval()
prompt = prompt_of(model, options.batch_size, options.seq_len)
prompt = {name: each.cuda() for name, each in prompt.items()}
length = {"min_new_tokens": options.new_tokens, "max_new_tokens": options.new_tokens}
model.generate(**prompt, **length, do_sample=False, pad_token_id=0)
