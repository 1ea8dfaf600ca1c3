"""DeepSpeed's engine, ZeRO stage 2 in bf16, trains a GPT-2 on one rank.

Needs: deepspeed, transformers
"""

import os

import deepspeed
import torch
from transformers import GPT2Config, GPT2LMHeadModel

os.environ.update(
    RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29511"
)
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(n_layer=6))
engine, optimizer, _, _ = deepspeed.initialize(
    model=model,
    model_parameters=model.parameters(),
    config={
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 2,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2, "overlap_comm": False},
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
    },
)
for _ in range(6):
    tokens = torch.randint(0, 50257, (8, 512), device=engine.device)
    loss = engine(input_ids=tokens, labels=tokens).loss
    engine.backward(loss)
    engine.step()
print("done:", engine.global_steps, "steps")
