"""Trains GPT-2 with 124 million parameters: data parallel, autocast, AdamW."""

import common
import torch
from torch.nn.parallel import DistributedDataParallel
from transformers import GPT2Config, GPT2LMHeadModel

device = common.begin()
model = DistributedDataParallel(GPT2LMHeadModel(GPT2Config()).to(device), device_ids=[device])
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
common.own_data()
for _ in range(4):
    tokens = torch.randint(50257, (4, 1024), device=device)
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    common.stepped()
common.end()
