"""Trains a word model: embedding, two LSTM layers, truncated backpropagation, clipping."""

import torch
from torch import nn


def main(steps=20, batch=64, length=64, width=650, vocabulary=10000):
    torch.manual_seed(0)
    table = nn.Embedding(vocabulary, width).to("cuda")
    net = nn.LSTM(width, width, 2, dropout=0.5).to("cuda")
    head = nn.Linear(width, vocabulary).to("cuda")
    parameters = [*table.parameters(), *net.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    drop, state = nn.Dropout(0.5), None
    for _ in range(steps):
        words = torch.randint(vocabulary, (length + 1, batch), device="cuda")
        if state is not None:
            state = tuple(part.detach() for part in state)
        y, state = net(drop(table(words[:-1])), state)
        loss = nn.functional.cross_entropy(head(drop(y)).view(-1, vocabulary), words[1:].view(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 0.25)
        optimizer.step()


if __name__ == "__main__":
    main()
