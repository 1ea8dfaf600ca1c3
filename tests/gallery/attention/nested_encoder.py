"""nn.TransformerEncoder skips padding in evaluation: its fast path takes nested tensors.

Needs: torch
"""

import torch
from torch import nn

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, activation="gelu")
encoder = nn.TransformerEncoder(layer, num_layers=6).to("cuda", torch.float16).eval()
embed = nn.Embedding(30000, 768).to("cuda", torch.float16)
head = nn.Linear(768, 4).to("cuda", torch.float16)

batch, longest = 128, 512
for step in range(3):
    lengths = torch.tensor([64 + (53 * i + 29 * step) % 449 for i in range(batch)])
    tokens = torch.randint(30000, (batch, longest), device="cuda")
    padding = (torch.arange(longest)[None] >= lengths[:, None]).to("cuda")
    with torch.inference_mode():
        encoded = encoder(embed(tokens), src_key_padding_mask=padding)
        scores = head(encoded[:, 0])
torch.cuda.synchronize()
print(tuple(scores.shape))
print("done: 3 batches")
