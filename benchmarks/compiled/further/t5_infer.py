"""Runs T5's encoder in fp16, compiled with reduce-overhead, for two batch sizes."""

import torch
from transformers import T5Config, T5EncoderModel


def main(steps=6, compile=True, on_step=lambda step: None):
    torch.manual_seed(0)
    model = T5EncoderModel(T5Config(num_layers=4)).to("cuda", torch.float16).eval()
    run = torch.compile(model, mode="reduce-overhead") if compile else model
    with torch.no_grad():
        for s in range(steps):
            ids = torch.randint(0, 30000, (32 if s % 2 else 16, 256), device="cuda")
            out = run(input_ids=ids).last_hidden_state
            del out
            on_step(s)
