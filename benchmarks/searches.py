"""Measures the memory of image networks with torch.backends.cudnn.benchmark, and without.

    python benchmarks/searches.py measure NETWORK [--benchmark] [--bfloat16]
    python benchmarks/searches.py compare FILE

`measure` trains a network for four steps on a GPU, real or simulated. It prints a line of JSON with
the peak allocated and the peak reserved bytes of each step. `compare` reads a file of these lines
from real GPUs, and lets plimsoll predict the same runs. It compares the predicted with the measured
peaks of the first and the last step. A prediction also gives a range for each peak of the whole
run. `compare` shows whether the measured peak lies in that range. Both commands need torchvision.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

STEPS = 4
MIB = 1 << 20


class _Twice(nn.Module):  # type: ignore[misc]
    def __init__(self, narrow: int, wide: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(narrow, wide, 3, 1, 1)
        self.second = nn.Conv2d(wide, wide, 3, 1, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return F.relu(self.second(F.relu(self.first(image))))


class _UNet(nn.Module):  # type: ignore[misc]
    """A U-Net with transposed convolutions."""

    def __init__(self, widths: tuple[int, ...] = (64, 128, 256, 512, 1024)) -> None:
        super().__init__()
        up = list(pairwise(widths[::-1]))
        self.down = nn.ModuleList(_Twice(*pair) for pair in pairwise((3, *widths)))
        self.up = nn.ModuleList(nn.ConvTranspose2d(wide, narrow, 2, 2) for wide, narrow in up)
        self.joined = nn.ModuleList(_Twice(*pair) for pair in up)
        self.head = nn.Conv2d(widths[0], 2, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        kept = []
        for number, down in enumerate(self.down):
            image = down(image)
            if number < len(self.down) - 1:
                kept.append(image)
                image = F.max_pool2d(image, 2)
        for up, joined in zip(self.up, self.joined, strict=True):
            image = joined(torch.cat([kept.pop(), up(image)], 1))
        return self.head(image)


def dcgan(noise: int = 100, width: int = 64) -> nn.Module:
    """Returns a DCGAN: a generator, followed by its discriminator."""
    wide = [8 * width, 4 * width, 2 * width, width]
    layers: list[nn.Module] = []
    for place, (before, after) in enumerate(pairwise((noise, *wide))):
        stride, padding = (1, 0) if place == 0 else (2, 1)
        layers.append(nn.ConvTranspose2d(before, after, 4, stride, padding, bias=False))
        layers += [nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
    layers += [nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh()]
    for place, (before, after) in enumerate(pairwise((3, *wide[::-1]))):
        layers.append(nn.Conv2d(before, after, 4, 2, 1, bias=False))
        layers += [nn.BatchNorm2d(after)] if place else []
        layers.append(nn.LeakyReLU(0.2, inplace=True))
    return nn.Sequential(*layers, nn.Conv2d(wide[0], 1, 4, 1, 0, bias=False))


def _block(narrow: int, wide: int, kernel: int = 1, stride: int = 1) -> nn.Module:
    conv = nn.Conv2d(narrow, wide, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(wide), nn.SiLU())


class _Split(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        half = width // 2
        self.first = _block(width, width)
        self.inner = nn.ModuleList(
            nn.Sequential(_block(half, half, 3), _block(half, half, 3)) for _ in range(count)
        )
        self.last = _block((2 + count) * half, width)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        parts = list(self.first(image).chunk(2, 1))
        for inner in self.inner:
            parts.append(inner(parts[-1]))
        return self.last(torch.cat(parts, 1))


class _Detector(nn.Module):  # type: ignore[misc]
    """A detector like YOLO: splits and joins channels, and has outputs at three scales."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 128, 256, 512)) -> None:
        super().__init__()
        self.stem = _block(3, widths[0], 3, 2)
        self.stages = nn.ModuleList(
            nn.Sequential(_block(narrow, wide, 3, 2), _Split(wide, count))
            for (narrow, wide), count in zip(pairwise(widths), (1, 2, 2, 1), strict=True)
        )
        self.heads = nn.ModuleList(
            nn.Sequential(_block(width, 64, 3), nn.Conv2d(64, 144, 1)) for width in widths[2:]
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        image, scales = self.stem(image), []
        for stage in self.stages:
            image = stage(image)
            scales.append(image)
        found = zip(self.heads, scales[1:], strict=True)
        return torch.cat([head(scale).flatten(2) for head, scale in found], 2)


def _torchvision(name: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import torchvision  # type: ignore[import-not-found]

        made: nn.Module = torchvision.models.get_model(name)
        return made

    return make


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet50": (_torchvision("resnet50"), (32, 3, 224, 224)),
    "efficientnet_b0": (_torchvision("efficientnet_b0"), (32, 3, 224, 224)),
    "unet": (_UNet, (4, 3, 256, 256)),
    "dcgan": (dcgan, (64, 100, 1, 1)),
    "yolo": (_Detector, (8, 3, 640, 640)),
    "video": (_torchvision("r3d_18"), (4, 3, 16, 112, 112)),
}
"""The networks, each with the size of its input."""


def measure(name: str, *, benchmark: bool, bfloat16: bool) -> dict[str, Any]:
    """Trains for some steps, and returns the peaks of each step."""
    torch.backends.cudnn.benchmark = benchmark
    torch.manual_seed(0)
    make, sizes = NETWORKS[name]
    layout = torch.channels_last if bfloat16 else torch.contiguous_format
    network = make().cuda().to(memory_format=layout)
    optimizer = torch.optim.SGD(network.parameters(), 0.01, momentum=0.9)
    steps = []
    for _ in range(STEPS):
        torch.cuda.reset_peak_memory_stats()
        image = torch.randn(sizes, device="cuda").to(memory_format=layout)
        with torch.autocast("cuda", torch.bfloat16, enabled=bfloat16):
            loss = network(image).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        steps.append((torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()))
    return {"model": name, "benchmark": benchmark, "amp": bfloat16, "steps": steps}


def compare(file: Path) -> None:
    """Predicts the runs in a file of measurements, and prints the comparison."""
    for line in file.read_text().splitlines():
        truth = json.loads(line)
        options = [
            *(["--benchmark"] if truth["benchmark"] else []),
            *(["--bfloat16"] if truth["amp"] else []),
        ]
        command = ["-m", "plimsoll", "predict", "--gpu", "H100", "--json", "--", __file__]
        done = subprocess.run(
            [sys.executable, *command, "measure", truth["model"], *options],
            capture_output=True,
            text=True,
            check=True,
        )
        printed = next(row for row in done.stderr.splitlines() if row[:1] == "{")
        print(_row(truth, json.loads(printed), json.loads(done.stdout)), flush=True)


def _row(truth: dict[str, Any], found: dict[str, Any], prediction: dict[str, Any]) -> str:
    name = truth["model"] + (", bfloat16" if truth["amp"] else "")
    cells = [f"{name:26} {'on' if truth['benchmark'] else 'off':4}"]
    for step in (0, STEPS - 1):
        for real, predicted in zip(truth["steps"][step], found["steps"][step], strict=True):
            cells.append(f"{real / MIB:8.0f} {predicted / real - 1:+7.2%}")
    for place, peak in enumerate(("allocated", "reserved")):
        real = max(step[place] for step in truth["steps"])
        bounds = prediction[f"peak_{peak}_range_bytes"] or [prediction[f"peak_{peak}_bytes"]] * 2
        least, most = bounds
        held = "in" if least <= real <= most else "not in"
        width = (most - least) / real
        cells.append(f"{held:>6} {least / MIB:.0f} to {most / MIB:.0f} ({width:.1%})")
    return "  ".join(cells)


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["measure", "compare"])
    parser.add_argument("of", help="a network, or a file")
    parser.add_argument("--benchmark", action="store_true")
    parser.add_argument("--bfloat16", action="store_true")
    chosen = parser.parse_args()
    if chosen.what == "compare":
        compare(Path(chosen.of))
    else:
        figures = measure(chosen.of, benchmark=chosen.benchmark, bfloat16=chosen.bfloat16)
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
