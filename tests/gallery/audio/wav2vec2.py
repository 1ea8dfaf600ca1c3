"""torchaudio's wav2vec 2.0 learns from raw waves of several lengths.

Needs: torchaudio
"""

import torch
import torchaudio

torch.manual_seed(0)
model = torchaudio.models.wav2vec2_base(aux_num_out=32).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
for seconds in (4, 6, 5):
    waves = torch.randn(8, 16000 * seconds, device="cuda")
    lengths = torch.randint(8000 * seconds, 16000 * seconds, (8,))
    lengths[0] = 16000 * seconds
    with torch.autocast("cuda", torch.bfloat16):
        scores, frames = model(waves, lengths.cuda())
    chances = scores.float().log_softmax(-1).transpose(0, 1)
    targets = torch.randint(1, 32, (8, 20), device="cuda")
    sizes = torch.full((8,), 20, device="cuda")
    loss = torch.nn.functional.ctc_loss(chances, targets, frames, sizes, zero_infinity=True)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done: 3 steps")
