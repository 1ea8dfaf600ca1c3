"""Trains a small GPT-2 with reduce-overhead, bf16 autocast, fused AdamW and gradient clipping."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def main(steps=6, compile=True, on_step=lambda step: None):
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=4, n_embd=512, n_head=8, vocab_size=16000)).cuda()
    run = torch.compile(model, mode="reduce-overhead") if compile else model
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for s in range(steps):
        ids = torch.randint(0, 16000, (8, 512), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = run(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        on_step(s)
