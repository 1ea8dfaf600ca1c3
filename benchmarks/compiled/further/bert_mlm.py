"""Trains a compiled BERT masked LM in fp32 with TF32 and gradient accumulation."""

import torch
from transformers import BertConfig, BertForMaskedLM


def main(steps=6, compile=True, on_step=lambda step: None):
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model = BertForMaskedLM(BertConfig(num_hidden_layers=4)).cuda()
    run = torch.compile(model) if compile else model
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for s in range(steps):
        ids = torch.randint(0, 30000, (16, 256), device="cuda")
        mask = torch.ones_like(ids)
        loss = run(input_ids=ids, attention_mask=mask, labels=ids).loss
        loss.backward()
        if s % 2:
            opt.step()
            opt.zero_grad()
        on_step(s)
