"""Keeps a million texts in a list of dictionaries, and their lengths in a tensor."""

import sys

import torch

device = sys.argv[1]
texts = [{"text": f"the text of number {i}", "label": i % 10} for i in range(1_000_000)]
lengths = torch.tensor([len(each["text"]) for each in texts]).to(device)
print(lengths.sum().item())
