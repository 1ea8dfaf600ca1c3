"""GPT-2 trains with 8-bit Adam; its embeddings keep 32-bit states.

Needs: bitsandbytes, transformers
"""

import bitsandbytes as bnb
import torch
from transformers import GPT2Config, GPT2LMHeadModel

BATCH, LENGTH, STEPS = 4, 512, 3


def main() -> None:
    torch.manual_seed(0)
    config = GPT2Config(n_layer=8)
    model = GPT2LMHeadModel(config).cuda()
    manager = bnb.optim.GlobalOptimManager.get_instance()
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            manager.register_module_override(module, "weight", {"optim_bits": 32})
    optimizer = bnb.optim.Adam8bit(model.parameters(), lr=3e-4, betas=(0.9, 0.95))
    for step in range(STEPS):
        tokens = torch.randint(0, config.vocab_size, (BATCH, LENGTH), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.3f}")
    print(f"done: {STEPS} steps with 8-bit Adam")


main()
