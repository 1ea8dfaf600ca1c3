"""Trains LoRA adapters on a Llama of 1.2 billion parameters in bfloat16."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

CONFIG = LlamaConfig(
    vocab_size=128_256,
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=8,
    max_position_embeddings=131_072,
    tie_word_embeddings=True,
)
ADAPTED = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class Lora(nn.Module):
    """A frozen linear layer, to which two small trainable layers add their output."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the sum of the frozen layer's output and the small layers' output."""
        return self.base(x) + self.up(self.down(x))


def adapt(model: nn.Module, rank: int) -> None:
    """Adds small matrices to all layers that `ADAPTED` names."""
    model.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in ADAPTED:
                setattr(module, name, Lora(child, rank))


def main() -> None:
    """Trains for a few steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = LlamaForCausalLM(CONFIG)
        adapt(model, options.rank)
    learning = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=1e-4)
    for _ in range(options.steps):
        tokens = torch.randint(
            CONFIG.vocab_size, (options.batch_size, options.seq_len), device="cuda"
        )
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main()
