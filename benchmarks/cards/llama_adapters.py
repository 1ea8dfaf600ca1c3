"""Trains adapters in a bfloat16 Llama with frozen weights and checkpointed layers."""

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    hidden_size=1024,
    intermediate_size=2816,
    num_hidden_layers=12,
    num_attention_heads=16,
    num_key_value_heads=4,
    vocab_size=32000,
)
model = LlamaForCausalLM(config).to(torch.bfloat16).cuda()
model.requires_grad_(False)


class Added(nn.Module):
    def __init__(self, base, rank=16):
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False, dtype=torch.bfloat16)
        self.up = nn.Linear(rank, base.out_features, bias=False, dtype=torch.bfloat16)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


for layer in model.model.layers:
    layer.self_attn.q_proj = Added(layer.self_attn.q_proj).cuda()
    layer.self_attn.v_proj = Added(layer.self_attn.v_proj).cuda()
model.gradient_checkpointing_enable()
model.enable_input_require_grads()
model.train()
trained = [each for each in model.parameters() if each.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=1e-4)
for _ in range(3):
    tokens = torch.randint(32000, (8, 768), device="cuda")
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
