"""A large model checks tokens that a small model drafts, then drafts taken from the prompt.

Needs: transformers
Sizes depend on data.
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def make_model(layers: int, width: int) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=16000,
        hidden_size=width,
        intermediate_size=width * 3,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=4,
    )
    return LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()


def main() -> None:
    torch.manual_seed(0)
    model, draft = make_model(12, 1536), make_model(2, 512)
    words = torch.randint(3, 16000, (1, 1024), device="cuda")
    fixed = {
        "attention_mask": torch.ones_like(words),
        "max_new_tokens": 32,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    answer = model.generate(words, assistant_model=draft, do_sample=False, **fixed)
    assert answer.shape == (1, 1056)
    model.generate(words, assistant_model=draft, do_sample=True, **fixed)
    model.generate(words, prompt_lookup_num_tokens=4, do_sample=False, **fixed)
    print("done: three drafts")


main()
