"""Generates text with Transformers' Llama. The cache is static, and decoding is compiled."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def main(steps=4, compile=True, on_step=lambda step: None):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=6,
        num_attention_heads=16,
        num_key_value_heads=8,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
    for step in range(steps):
        prompt = torch.randint(1, 32000, (16, 512), device="cuda")
        model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=24,
            do_sample=False,
            cache_implementation="static",
            disable_compile=not compile,
        )
        on_step(step)


if __name__ == "__main__":
    main()
