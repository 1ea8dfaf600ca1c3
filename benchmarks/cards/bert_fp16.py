"""Trains a BERT classifier in half precision, with accumulated gradients."""

import torch
from transformers import BertConfig, BertForSequenceClassification

model = BertForSequenceClassification(BertConfig(num_labels=3)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
scaler = torch.amp.GradScaler()
for _ in range(2):
    for _ in range(2):
        tokens = torch.randint(30000, (12, 320), device="cuda")
        labels = torch.randint(3, (12,), device="cuda")
        with torch.autocast("cuda", torch.float16):
            loss = model(input_ids=tokens, labels=labels).loss / 2
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
