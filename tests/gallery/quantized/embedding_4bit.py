"""Large embeddings in four and eight bits feed a classifier that is trained.

Needs: bitsandbytes
"""

import bitsandbytes as bnb
import torch
from torch import nn

WORDS, USERS, WIDTH, BATCH, LENGTH, STEPS = 200_000, 500_000, 512, 512, 64, 3


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = bnb.nn.EmbeddingNF4(WORDS, WIDTH)
        self.users = bnb.nn.Embedding8bit(USERS, WIDTH, dtype=torch.float16)
        self.layers = nn.Sequential(
            nn.Linear(2 * WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, 20)
        )

    def forward(self, words: torch.Tensor, users: torch.Tensor) -> torch.Tensor:
        text = self.words(words).float().mean(1)
        return self.layers(torch.cat((text, self.users(users).float()), 1))


def main() -> None:
    torch.manual_seed(0)
    model = Classifier().cuda()
    optimizer = bnb.optim.RMSprop8bit(model.layers.parameters(), lr=1e-3)
    for _ in range(STEPS):
        words = torch.randint(0, WORDS, (BATCH, LENGTH), device="cuda")
        users = torch.randint(0, USERS, (BATCH,), device="cuda")
        labels = torch.randint(0, 20, (BATCH,), device="cuda")
        loss = nn.functional.cross_entropy(model(words, users), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"done: {STEPS} steps on quantized embeddings")


main()
