"""An LSTM language model keeps its state from piece to piece, and is evaluated after each epoch."""

import math

import torch
from torch import nn

WORDS, WIDTH, LAYERS, LENGTH, BATCH = 20000, 800, 2, 70, 64


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.encoder = nn.Embedding(WORDS, WIDTH)
        self.rnn = nn.LSTM(WIDTH, WIDTH, LAYERS, dropout=0.5)
        self.decoder = nn.Linear(WIDTH, WORDS)
        self.decoder.weight = self.encoder.weight

    def forward(self, ids, state):
        y, state = self.rnn(self.drop(self.encoder(ids)), state)
        return self.decoder(self.drop(y)).view(-1, WORDS), state


def pieces(data):
    for start in range(0, data.shape[0] - 1, LENGTH):
        length = min(LENGTH, data.shape[0] - 1 - start)
        yield data[start : start + length], data[start + 1 : start + 1 + length].flatten()


def evaluate(model, data):
    model.eval()
    total, state = 0.0, None
    with torch.no_grad():
        for ids, targets in pieces(data):
            logits, state = model(ids, state)
            total += len(ids) * nn.functional.cross_entropy(logits, targets).item()
    return total / len(data)


torch.manual_seed(1)
training = torch.randint(WORDS, (350, BATCH)).cuda()
validation = torch.randint(WORDS, (150, BATCH)).cuda()
model = LanguageModel().cuda()
best, rate = math.inf, 5.0
for epoch in range(2):
    model.train()
    state = None
    for ids, targets in pieces(training):
        if state is not None:
            state = tuple(part.detach() for part in state)
        model.zero_grad()
        logits, state = model(ids, state)
        nn.functional.cross_entropy(logits, targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(parameter.grad, alpha=-rate)
    loss = evaluate(model, validation)
    print(f"epoch {epoch}: perplexity {math.exp(min(loss, 20)):.1f}")
    if loss < best:
        best = loss
    else:
        rate /= 4
print("done: 2 epochs")
