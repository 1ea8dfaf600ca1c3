"""Measures the workspaces that cuDNN takes for the convolutions of well-known networks.

    python benchmarks/convolutions.py measure --out FILE [--workers 8] [--seconds 240]
    python benchmarks/convolutions.py search --out FILE [--seconds 240]
    python benchmarks/convolutions.py merge MEASURED SEARCHED

`measure` and `search` need torchvision, plimsoll, and a GPU without other processes. Both use the
code of `plimsoll measure` on the networks below, common networks first, until the time is up.
`merge` adds the results of both to data/cudnn_by_words.csv. New rows replace old ones. Predictions
read that file. Older tables, such as data/cudnn_workspaces.csv, come from an earlier version of
this program.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from searches import NETWORKS as SEARCHED
from searches import dcgan
from torch import nn

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "src/plimsoll/torch/simulated/data/cudnn_by_words.csv"
NOT_MEASURED = (-1,) * 4
CONVOLUTIONS = (nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.ConvTranspose3d)

Sizes = tuple[int, ...]
Case = tuple[nn.Module, Sizes]
"""A network on the meta device, and its input's size."""


def searched_networks(batch: int | None) -> Iterator[Case]:
    """Yields the networks of benchmarks/searches.py, for inputs of the batch size `batch`.

    If `batch` is None, each network's batch size is the one in benchmarks/searches.py.
    """
    for name, (_, (own_batch, *sizes)) in SEARCHED.items():
        yield _searched(name), (batch or own_batch, *sizes)


@cache
def _searched(name: str) -> nn.Module:
    return SEARCHED[name][0]().to("meta")


@cache
def _torchvision(name: str) -> nn.Module:
    import torchvision  # type: ignore[import-not-found]

    # Some networks compute their widths with tensors while they are built. Meta tensors have no
    # values, so every network is built on the CPU and then moved.
    made: nn.Module = torchvision.models.get_model(name).to("meta")
    return made


def networks_for_video(batch: int, frames: int) -> Iterator[Case]:
    """Yields networks for video.

    In the inputs and in some kernels, the size in time differs from the height and the width.
    """
    for name in ("r3d_18", "mc3_18", "r2plus1d_18"):
        yield _torchvision(name), (batch, 3, frames, 112, 112)


def networks_for_images(batch: int) -> Iterator[Case]:
    """Yields image networks that plimsoll's older tables of workspaces do not cover."""
    for name in ("resnet34", "regnet_x_3_2gf", "regnet_y_3_2gf", "mnasnet1_0"):
        yield _torchvision(name), (batch, 3, 224, 224)


class _Volumes(nn.Module):  # type: ignore[misc]
    """A U-Net for 3D volumes."""

    def __init__(self, widths: tuple[int, ...] = (16, 32, 64, 128)) -> None:
        super().__init__()
        pairs = list(itertools.pairwise(widths))
        self.first = nn.Conv3d(1, widths[0], 3, padding=1)
        self.down = nn.ModuleList(
            nn.Sequential(nn.Conv3d(a, b, 3, 2, 1), nn.Conv3d(b, b, 3, 1, 1)) for a, b in pairs
        )
        self.up = nn.ModuleList(nn.ConvTranspose3d(b, a, 2, 2) for a, b in reversed(pairs))
        self.joined = nn.ModuleList(nn.Conv3d(2 * a, a, 3, 1, 1) for a, _ in reversed(pairs))
        self.head = nn.Conv3d(widths[0], 3, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        kept = [self.first(image)]
        for down in self.down:
            kept.append(down(kept[-1]))
        image = kept.pop()
        for up, joined in zip(self.up, self.joined, strict=True):
            image = joined(torch.cat([up(image), kept.pop()], 1))
        return self.head(image)


def networks_that_make_images(batch: int) -> Iterator[Case]:
    """Yields a generator and its discriminator, with the usual widths."""
    for width in (64, 128):
        yield dcgan(width=width).to("meta"), (batch, 100, 1, 1)


def cases() -> Iterator[Case]:
    """Yields all networks, the more common ones first."""
    yield from searched_networks(None)
    for batch, frames in itertools.product((4, 8, 2, 16, 1), (16, 8, 32)):
        yield from networks_for_video(batch, frames)
    for batch in (64, 128, 32, 16, 256):
        yield from networks_that_make_images(batch)
    for batch in (32, 64, 16, 8, 128):
        yield from networks_for_images(batch)
    for batch, size in itertools.product((1, 2, 4), ((64,) * 3, (96,) * 3, (32, 128, 128))):
        yield _Volumes().to("meta"), (batch, 1, *size)
    for batch in (8, 16, 2, 32):
        yield from searched_networks(batch)


def all_words() -> list[str]:
    """Returns all networks' convolutions as texts, in the notation of `_words`, without repeats.

    There are two texts for each convolution: one for float32, one for bfloat16 with channels last.
    """
    found: dict[str, None] = {}
    for network, sizes in cases():
        calls = _calls(network, sizes)
        for kind in ("float32", "bfloat16 channels_last"):
            found.update(dict.fromkeys(_words(kind, *call) for call in calls))
    return list(found)


def _calls(network: nn.Module, sizes: Sizes) -> list[tuple[Any, Sizes]]:
    """Returns a network's convolutions except depthwise ones, each with its input's shape."""
    found: list[tuple[Any, Sizes]] = []
    hooks = [
        module.register_forward_pre_hook(
            lambda conv, given: found.append((conv, tuple(given[0].shape)))
        )
        for module in network.modules()
        if isinstance(module, CONVOLUTIONS)
    ]
    network(torch.empty(sizes, device="meta"))
    for hook in hooks:
        hook.remove()
    return [(conv, sizes) for conv, sizes in found if conv.groups < conv.in_channels]


def _words(kind: str, conv: Any, sizes: Sizes) -> str:
    """Returns a convolution in the notation of csrc/rules/measured_convolutions.h."""

    def by(numbers: Sequence[int]) -> str:
        return "x".join(map(str, numbers))

    return (
        f"{kind}{' transposed' if conv.transposed else ''} {by(sizes)} by {by(conv.weight.shape)}"
        f" stride {by(conv.stride)} padding {by(conv.padding)} dilation {by(conv.dilation)}"
        f" groups {conv.groups}"
        + (f" output_padding {by(conv.output_padding)}" if conv.transposed else "")
    )


def measure(part: str, out: Path, workers: int, seconds: float) -> None:
    """Measures the convolutions of all networks, and writes the results to `out`.

    Args:
        part: What to measure: a key of `PARTS` in plimsoll.integrations.measuring.on_card.
        out: The JSON file for the results.
        workers: The number of processes, among which the convolutions are divided.
        seconds: The time that each process may take.
    """
    words = all_words()
    started = []
    for index in range(workers):
        process = subprocess.Popen(
            [sys.executable, "-m", "plimsoll.integrations.measuring.on_card"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdin is not None
        given = {"part": part, "convolutions": words[index::workers], "seconds": seconds}
        process.stdin.write(json.dumps(given))
        process.stdin.close()
        started.append(process)
    found: dict[str, Any] = {}
    for process in started:
        assert process.stdout is not None
        found |= json.loads(process.stdout.read().splitlines()[-1])
    out.write_text(json.dumps(found))
    print(f"{part}: {len(found)} of {len(words)}")


def merge(measured: Path, searched: Path) -> None:
    """Adds the results of `measure` and `search` to the file `TABLE`. New rows replace old ones."""
    firsts = json.loads(measured.read_text())
    searches = json.loads(searched.read_text())
    lines = TABLE.read_text().splitlines()
    names = next(place for place, line in enumerate(lines) if not line.startswith("#"))
    known = {tuple(line.split(",")[:2]): line for line in lines[names + 1 :]}
    for words in firsts | searches:
        of_first = firsts.get(words, NOT_MEASURED[:3])
        of_search = searches.get(words, (NOT_MEASURED,) * 3)
        for number, (first, sizes) in enumerate(zip(of_first, of_search, strict=True)):
            cells = (words, number, first, *sizes)
            known[words, str(number)] = ",".join(map(str, cells))
    rows = [known[key] for key in sorted(known)]
    TABLE.write_text("".join(f"{line}\n" for line in (*lines[: names + 1], *rows)))
    print(f"{len(rows)} rows")


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["measure", "search", "merge"])
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=240)
    chosen = parser.parse_args()
    if chosen.what == "merge":
        merge(*chosen.files)
    elif chosen.what == "measure":
        measure("convolutions", chosen.out, chosen.workers, chosen.seconds)
    else:
        measure("searches", chosen.out, 1, chosen.seconds)


if __name__ == "__main__":
    main()
