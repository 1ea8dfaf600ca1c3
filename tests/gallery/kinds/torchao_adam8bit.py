"""torchao's 8-bit AdamW keeps its state in one byte an element.

Needs: torchao, transformers
"""

import torch
from torchao.optim import AdamW8bit
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
config = GPT2Config(n_layer=12, n_embd=1024, n_head=16, n_positions=512)
model = GPT2LMHeadModel(config).to("cuda", torch.bfloat16)
optimizer = AdamW8bit(model.parameters(), lr=1e-4)
for _ in range(3):
    tokens = torch.randint(config.vocab_size, (4, 512), device="cuda")
    loss = model(tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
print("done: 3 steps")
