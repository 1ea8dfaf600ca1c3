"""Trains a small GPT with accumulated gradients, averages its weights, and tests the average."""

import copy

import torch
from torch import nn
from torch.nn import functional


def main(steps=24, parts=4, width=768, layers=6, vocabulary=50257):
    torch.manual_seed(0)
    table = nn.Embedding(vocabulary, width)
    block = nn.TransformerEncoderLayer(width, 12, 4 * width, 0.1, "gelu", batch_first=True)
    body = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
    model = nn.ModuleList([table, body]).to("cuda")
    averaged = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    def loss_of(net: nn.ModuleList, words: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1], device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            y = net[1](net[0](words), mask=mask, is_causal=True)
            logits = functional.linear(y, net[0].weight)
        return functional.cross_entropy(
            logits[:, :-1].flatten(0, 1).float(), words[:, 1:].flatten()
        )

    for step in range(steps):
        length = 256 + 64 * (step * 3 % 7)
        words = torch.randint(vocabulary, (4, length), device="cuda")
        (loss_of(model, words) / parts).backward()
        if step % parts == parts - 1:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                torch._foreach_lerp_(list(averaged.parameters()), list(model.parameters()), 0.01)
                loss_of(averaged, torch.randint(vocabulary, (8, 512), device="cuda"))


if __name__ == "__main__":
    main()
