"""A Fourier neural operator trains: two-dimensional transforms, and weights on low frequencies.

Needs: torch
"""

import torch
from torch import nn
from torch.nn import functional as F


class Spectral(nn.Module):
    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        shape = (2, width, width, modes, modes)
        self.weight = nn.Parameter(torch.randn(shape, dtype=torch.cfloat) / width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft2(x)
        out = torch.zeros_like(spectrum)
        m = self.modes
        for at, weight in zip((slice(None, m), slice(-m, None)), self.weight, strict=True):
            out[:, :, at, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, at, :m], weight)
        return torch.fft.irfft2(out, s=x.shape[-2:])


class Operator(nn.Module):
    def __init__(self, width: int = 64, modes: int = 16, layers: int = 4) -> None:
        super().__init__()
        self.lift = nn.Conv2d(3, width, 1)
        self.spectral = nn.ModuleList(Spectral(width, modes) for _ in range(layers))
        self.local = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(layers))
        self.project = nn.Sequential(nn.Conv2d(width, 128, 1), nn.GELU(), nn.Conv2d(128, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.lift(x)
        for spectral, local in zip(self.spectral, self.local, strict=True):
            x = F.gelu(spectral(x) + local(x))
        return self.project(x)


torch.manual_seed(0)
model = Operator().to("cuda")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(3):
    field = torch.randn(16, 3, 128, 128, device="cuda")
    loss = F.mse_loss(model(field), torch.randn(16, 1, 128, 128, device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.cuda.synchronize()
print("done: 3 steps")
