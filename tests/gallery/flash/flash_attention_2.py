"""A Llama trains with flash-attn 2, on padded batches, and generates.

Needs: flash-attn, transformers
Only simulated.
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
settings = LlamaConfig(
    hidden_size=1024,
    intermediate_size=2816,
    num_hidden_layers=8,
    num_attention_heads=16,
    num_key_value_heads=4,
    attn_implementation="flash_attention_2",
)
model = LlamaForCausalLM(settings).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(3):
    tokens = torch.randint(3, 32000, (4, 1024), device="cuda")
    mask = torch.ones_like(tokens)
    mask[0, 512:] = 0
    loss = model(input_ids=tokens, attention_mask=mask, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

model.eval()
tokens = torch.randint(3, 32000, (2, 64), device="cuda")
words = model.generate(tokens, max_new_tokens=16, min_new_tokens=16, do_sample=False)
print("done:", tuple(words.shape))
