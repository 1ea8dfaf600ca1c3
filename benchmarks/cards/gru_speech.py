"""Trains a speech model: spectra, convolutions and a GRU, with the CTC loss."""

import torch
from torch import nn

spectrum = torch.hann_window(400, device="cuda")
front = nn.Sequential(
    nn.Conv1d(201, 384, 5, stride=2, padding=2),
    nn.ReLU(),
    nn.Conv1d(384, 384, 5, padding=2),
    nn.ReLU(),
).cuda()
middle = nn.GRU(384, 384, num_layers=3, bidirectional=True, batch_first=True).cuda()
head = nn.Linear(768, 40).cuda()
parts = nn.ModuleList([front, middle, head])
optimizer = torch.optim.AdamW(parts.parameters(), lr=3e-4)
for _ in range(3):
    sound = torch.randn(16, 16000 * 6, device="cuda")
    waves = torch.stft(sound, 400, 160, window=spectrum, return_complex=True).abs()
    states, _ = middle(front(waves).transpose(1, 2))
    scores = head(states).log_softmax(-1).transpose(0, 1)
    lengths = torch.full((16,), scores.size(0), dtype=torch.long)
    targets = torch.randint(1, 40, (16, 50), device="cuda")
    loss = nn.functional.ctc_loss(scores, targets, lengths, torch.full((16,), 50))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
