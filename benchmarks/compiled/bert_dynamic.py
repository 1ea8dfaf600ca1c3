"""Trains Transformers' BERT on batches of varying lengths, compiled once for all of them."""

import torch
from transformers import BertConfig, BertForMaskedLM

LENGTHS = (128, 200, 256, 160, 240, 184)


def main(steps=8, compile=True, on_step=lambda step: None):
    torch.manual_seed(0)
    model = BertForMaskedLM(BertConfig(num_hidden_layers=2)).to("cuda")
    run = torch.compile(model, dynamic=True) if compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(steps):
        tokens = torch.randint(30522, (48, LENGTHS[step % len(LENGTHS)]), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = run(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        on_step(step)


if __name__ == "__main__":
    main()
