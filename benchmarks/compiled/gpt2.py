"""Trains Transformers' GPT-2 with six layers under autocast."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def main(steps=6, compile=True, on_step=lambda step: None):
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=6)).to("cuda")
    run = torch.compile(model) if compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step in range(steps):
        tokens = torch.randint(50257, (8, 1024), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = run(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        on_step(step)


if __name__ == "__main__":
    main()
