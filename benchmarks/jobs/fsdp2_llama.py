"""Trains Transformers' Llama by FSDP2, sharded layer by layer, in bfloat16."""

import common
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

device = common.begin()
config = LlamaConfig(
    vocab_size=32000,
    hidden_size=2048,
    intermediate_size=5632,
    num_hidden_layers=12,
    num_attention_heads=16,
    num_key_value_heads=4,
    use_cache=False,
)
with torch.device("meta"):
    model = LlamaForCausalLM(config)
precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model.model.layers:
    fully_shard(layer, mp_policy=precision)
fully_shard(model, mp_policy=precision)
model.to_empty(device=device)
model.init_weights()
model.model.rotary_emb = type(model.model.rotary_emb)(config).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
common.own_data()
for _ in range(4):
    tokens = torch.randint(32000, (2, 1024), device=device)
    model(input_ids=tokens, labels=tokens).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    common.stepped()
common.end()
