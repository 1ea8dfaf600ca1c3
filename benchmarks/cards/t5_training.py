"""Trains a T5 of Transformers in single precision."""

import torch
from transformers import T5Config, T5ForConditionalGeneration

config = T5Config(
    d_model=512, d_ff=1024, num_layers=6, num_heads=8, vocab_size=32128, decoder_start_token_id=0
)
model = T5ForConditionalGeneration(config).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(3):
    source = torch.randint(32128, (16, 256), device="cuda")
    target = torch.randint(32128, (16, 64), device="cuda")
    model(input_ids=source, labels=target).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
