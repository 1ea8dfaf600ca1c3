"""torchaudio's Conformer over mel spectrograms learns with the CTC loss.

Needs: torchaudio
"""

import torch
import torchaudio

torch.manual_seed(0)
spectrogram = torchaudio.transforms.MelSpectrogram(16000, n_fft=400, n_mels=80).cuda()
decibels = torchaudio.transforms.AmplitudeToDB().cuda()
masking = torchaudio.transforms.FrequencyMasking(27).cuda()
body = torchaudio.models.Conformer(
    input_dim=80, num_heads=4, ffn_dim=320, num_layers=8, depthwise_conv_kernel_size=31
).cuda()
head = torch.nn.Linear(80, 64).cuda()
optimizer = torch.optim.AdamW([*body.parameters(), *head.parameters()], lr=1e-3)

for _ in range(3):
    waves = torch.randn(16, 16000 * 8, device="cuda")
    with torch.no_grad():
        features = masking(decibels(spectrogram(waves))).transpose(1, 2)
    lengths = torch.full((16,), features.shape[1], device="cuda")
    encoded, lengths = body(features, lengths)
    chances = head(encoded).log_softmax(-1).transpose(0, 1)
    targets = torch.randint(1, 64, (16, 40), device="cuda")
    target_lengths = torch.full((16,), 40, device="cuda")
    loss = torch.nn.functional.ctc_loss(chances, targets, lengths, target_lengths)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done: 3 steps")
