"""DeepSpeed's ZeRO stage 3 gathers a model's parameters as it trains, on one rank.

Needs: deepspeed, transformers
Sizes depend on data.
"""

import os

import deepspeed
import torch
from transformers import LlamaConfig, LlamaForCausalLM

os.environ.update(
    RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29512"
)
torch.manual_seed(0)
settings = LlamaConfig(
    hidden_size=768, intermediate_size=2048, num_hidden_layers=6, num_attention_heads=12
)
model = LlamaForCausalLM(settings)
engine, optimizer, _, _ = deepspeed.initialize(
    model=model,
    model_parameters=model.parameters(),
    config={
        "train_micro_batch_size_per_gpu": 8,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "overlap_comm": False},
        "zero_allow_untested_optimizer": True,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
    },
)
for _ in range(3):
    tokens = torch.randint(0, 32000, (8, 512), device=engine.device)
    loss = engine(input_ids=tokens, labels=tokens).loss
    engine.backward(loss)
    engine.step()
print("done:", engine.global_steps, "steps")
