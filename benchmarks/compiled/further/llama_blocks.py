"""Trains a Llama with bf16 weights and layers that are compiled one by one."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def main(steps=5, compile=True, on_step=lambda step: None):
    torch.manual_seed(0)
    cfg = LlamaConfig(
        hidden_size=1024,
        intermediate_size=2752,
        num_hidden_layers=6,
        num_attention_heads=16,
        num_key_value_heads=4,
        vocab_size=32000,
        attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(cfg).to("cuda", torch.bfloat16)
    if compile:
        for layer in model.model.layers:
            layer.compile()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    for s in range(steps):
        ids = torch.randint(0, 32000, (4, 1024), device="cuda")
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        opt.step()
        opt.zero_grad()
        on_step(s)
