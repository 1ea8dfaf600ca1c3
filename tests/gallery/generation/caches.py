"""A Llama answers with every kind of cache: dynamic, static, offloaded and with a sliding window.

Needs: transformers
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

SIZES = {
    "vocab_size": 16000,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
}


def main() -> None:
    torch.manual_seed(0)
    words = torch.randint(3, 16000, (8, 512), device="cuda")
    fixed = {
        "attention_mask": torch.ones_like(words),
        "min_new_tokens": 24,
        "max_new_tokens": 24,
        "do_sample": False,
        "pad_token_id": 0,
        "disable_compile": True,
    }
    llama = LlamaForCausalLM(LlamaConfig(**SIZES)).to("cuda", torch.bfloat16).eval()
    kinds = ("dynamic", "static", "offloaded", "offloaded_static")
    for kind in kinds:
        answer = llama.generate(words, cache_implementation=kind, **fixed)
        assert answer.shape == (8, 536)
    llama.generate(words, use_cache=False, **{**fixed, "min_new_tokens": 4, "max_new_tokens": 4})
    del llama
    sizes = MistralConfig(**SIZES, sliding_window=256)
    mistral = MistralForCausalLM(sizes).to("cuda", torch.bfloat16).eval()
    mistral.generate(words, **fixed)
    print(f"done: {len(kinds)} caches and a window")


main()
