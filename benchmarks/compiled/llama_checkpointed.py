"""Trains Transformers' Llama in bfloat16 with checkpointed layers."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def main(steps=6, compile=True, on_step=lambda step: None):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=4,
        num_attention_heads=16,
        num_key_value_heads=8,
        use_cache=False,
    )
    model = LlamaForCausalLM(config).to("cuda", torch.bfloat16)
    model.train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    run = torch.compile(model) if compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(steps):
        tokens = torch.randint(32000, (8, 1024), device="cuda")
        loss = run(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        on_step(step)


if __name__ == "__main__":
    main()
