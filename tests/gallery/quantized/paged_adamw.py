"""A transformer trains with paged AdamW: its 8-bit and 32-bit states are managed memory.

Needs: bitsandbytes
"""

import bitsandbytes as bnb
import torch
from torch import nn

BATCH, LENGTH, WIDTH, VOCABULARY, STEPS = 8, 256, 1024, 16000, 3


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = bnb.nn.StableEmbedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, nhead=16, dim_feedforward=4 * WIDTH, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, num_layers=6, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH, device=tokens.device)
        hidden = self.encoder(self.embedding(tokens), mask=mask, is_causal=True)
        return self.head(hidden)


def main() -> None:
    torch.manual_seed(0)
    model = Model().cuda()
    optimizers = [
        bnb.optim.PagedAdamW8bit(model.encoder.parameters(), lr=1e-4, weight_decay=0.1),
        bnb.optim.PagedAdamW32bit(
            [*model.embedding.parameters(), *model.head.parameters()], lr=1e-4, weight_decay=0.1
        ),
    ]
    for _ in range(STEPS):
        tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(
                logits.reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1)
            )
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    print(f"done: {STEPS} steps with paged AdamW")


main()
