"""What cuDNN takes besides operands and results, for the convolutions of well-known networks.

    python benchmarks/convolutions.py measure --out FILE [--workers 12] [--seconds 240]
    python benchmarks/convolutions.py search --out FILE [--workers 1] [--seconds 240]
    python benchmarks/convolutions.py merge FILE
    python benchmarks/convolutions.py merge-searches FILE

`measure` and `search` need a GPU and torchvision. `measure` writes rows of
data/cudnn_workspaces.csv, those of common layers first, until its time is over. `merge` adds what
the table does not have yet. `search` does the same with torch.backends.cudnn.benchmark: a row has
the largest workspace of a search for each pass, and then the fastest plan's, which one worker on an
idle card finds best. `merge-searches` adds them to cudnn_largest.csv and cudnn_fastest.csv.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

DATA = Path(__file__).parents[1] / "src/plimsoll/torch/simulated/data"
TABLE = DATA / "cudnn_workspaces.csv"
SEARCHED = (DATA / "cudnn_largest.csv", DATA / "cudnn_fastest.csv")
KEYS = 12
"""Columns that say which convolution a row is of."""
TYPES = (torch.float32, torch.bfloat16, torch.float16)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
FEW_BATCHES = (2, 8, 32)
MOST_BYTES = 1 << 30
"""Of an operand."""
MOST_KEPT = 4 << 30
"""Of memory by a worker: where little is free, cuDNN chooses other kernels."""
NETWORKS = {
    224: (
        *("resnet18", "resnet50", "resnext50_32x4d", "mobilenet_v2", "mobilenet_v3_large"),
        *("efficientnet_b0", "convnext_tiny", "vgg16", "densenet121", "shufflenet_v2_x1_0"),
        *("efficientnet_v2_s", "wide_resnet50_2"),
    ),
    512: ("resnet50",),
    640: ("resnet50",),
}

LINES, TRANSPOSED, VOLUMES = 2, (1, 4), (3, 4)
Layer = tuple[int, int, int, int, int, int, int, int, int]
"""kind (see the table), channels, side, out_channels, kernel, stride, padding, groups, dilation."""


def network_layers() -> Iterator[Layer]:
    """The convolutions of networks for images."""
    import torchvision  # type: ignore[import-not-found]

    for side, names in NETWORKS.items():
        for name in names:
            with torch.device("meta"):
                yield from _layers_of(torchvision.models.get_model(name), side)


def _layers_of(model: nn.Module, side: int) -> list[Layer]:
    found: list[Layer] = []
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_pre_hook(
                lambda conv, given: found.append(_layer(conv, given[0]))
            )
    model(torch.empty(1, 3, side, side))
    return found


def _layer(conv: nn.Conv2d, image: torch.Tensor) -> Layer:
    return (
        *(0, conv.in_channels, image.shape[-1], conv.out_channels, conv.kernel_size[0]),
        *(conv.stride[0], int(conv.padding[0]), conv.groups, conv.dilation[0]),
    )


def other_layers() -> Iterator[Layer]:
    """Those of detectors, of networks that denoise images, and of lines of sound."""
    for side in (200, 160, 100, 80, 64, 50, 40, 32, 25, 20, 13, 7):
        yield (0, 256, side, 256, 3, 1, 1, 1, 1)
        for channels in (256, 512, 1024, 2048):
            yield (0, channels, side, 256, 1, 1, 0, 1, 1)
    for channels, side in ((32, 320), (64, 160), (128, 80), (256, 40), (512, 20)):
        yield (0, channels // 2, 2 * side, channels, 3, 2, 1, 1, 1)
        for out in (channels // 2, channels, 2 * channels):
            yield (0, channels, side, out, 1, 1, 0, 1, 1)
            yield (0, channels, side, out, 3, 1, 1, 1, 1)
    for channels in (64, 128, 256, 320, 512, 640, 1280):
        for side in (128, 64, 32, 16, 8):
            yield (0, channels, side, channels, 3, 1, 1, 1, 1)
            yield (0, channels, side, channels, 3, 2, 1, 1, 1)
            yield (0, 2 * channels, side, channels, 3, 1, 1, 1, 1)
            yield (0, 2 * channels, side, channels, 1, 1, 0, 1, 1)
            yield (1, channels, side, channels // 2, 2, 2, 0, 1, 1)
    for dilation in (2, 4, 12, 24, 36):
        for channels, out in ((256, 256), (512, 512), (2048, 256)):
            for side in (28, 32, 64, 65):
                yield (0, channels, side, out, 3, 1, dilation, 1, dilation)
    for side, (channels, out) in itertools.product(
        (300, 150, 75, 38, 19, 10), ((64, 128), (512, 512))
    ):
        yield (0, channels, side, out, 3, 1, 1, 1, 1)
    for length, kernel, stride in ((32000, 10, 5), (6400, 3, 2), (3200, 3, 2), (1600, 2, 2)):
        yield (2, 512, length, 512, kernel, stride, 0, 1, 1)
    for length in (100, 200, 400, 1000, 3000):
        yield (2, 256, length, 512, 1, 1, 0, 1, 1)
        yield (2, 512, length, 512, 31, 1, 15, 512, 1)
        yield (2, 768, length, 768, 128, 1, 64, 16, 1)
        yield (2, 512, length, 512, 3, 1, 1, 1, 1)


HEADS = (1, 2, 3, 4, 6, 9, 17, 18, 21, 36, 60, 75, 80, 81, 84, 85, 91, 144, 255, 720)
"""How many channels come out of layers that say classes, boxes, points or colors."""


def heads() -> Iterator[Layer]:
    """Last layers: few or odd channels come out of them."""
    sides = (7, 13, 14, 16, 20, 25, 28, 32, 40, 50, 64, 80, 100, 128, 160, 256)
    for side, out in itertools.product(sides, HEADS):
        yield (0, 256, side, out, 3, 1, 1, 1, 1)
        for channels in (64, 128, 256, 512):
            yield (0, channels, side, out, 1, 1, 0, 1, 1)


def layers_between_scales() -> Iterator[Layer]:
    """Those of networks that make images, or points of them: kernels of four, and their inverse."""
    widths = (3, 64, 128, 256, 512, 1024)
    for (narrow, wide), side in itertools.product(
        itertools.pairwise(widths), (4, 8, 16, 32, 64, 128)
    ):
        yield (0, narrow, 2 * side, wide, 4, 2, 1, 1, 1)
        yield (1, wide, side, narrow, 4, 2, 1, 1, 1)
        yield (1, wide, side, wide, 4, 2, 1, 1, 1)
        yield (1, wide, side, wide, 2, 2, 0, 1, 1)
        yield (1, wide, side, narrow, 3, 2, 1, 1, 1)
    for channels, side in itertools.product((256, 512), (7, 8, 14, 16, 28, 32)):
        for out in (1, 17, 18, 21, 80, 81, 91):
            yield (1, channels, side, out, 4, 2, 1, 1, 1)
            yield (1, channels, side, out, 2, 2, 0, 1, 1)
    for channels in (1, 3, 4):
        sides = (28, 32, 64, 128, 256, 512)
        for wide, side in itertools.product((32, 48, 64, 96, 128, 320), sides):
            for kernel in (1, 3, 5, 7):
                yield (0, channels, side, wide, kernel, 1, kernel // 2, 1, 1)
            yield (0, wide, side, channels, 3, 1, 1, 1, 1)


def volume_layers() -> Iterator[Layer]:
    """Those of networks for volumes."""
    widths = (1, 4, 16, 32, 64, 128, 256)
    for side in (6, 8, 12, 16, 24, 32, 48, 64, 96, 128):
        for narrow, wide in itertools.pairwise(widths):
            yield (3, narrow, side, wide, 3, 1, 1, 1, 1)
            yield (3, narrow, side, wide, 3, 2, 1, 1, 1)
            yield (3, wide, side, wide, 3, 1, 1, 1, 1)
            yield (3, 2 * wide, side, wide, 3, 1, 1, 1, 1)
            yield (3, wide, side, narrow, 1, 1, 0, 1, 1)
            yield (4, wide, side, narrow, 2, 2, 0, 1, 1)
            yield (4, wide, side, narrow, 3, 2, 1, 1, 1)
        for channels, out in itertools.product((16, 32, 64), (1, 2, 3, 4, 14)):
            yield (3, channels, side, out, 1, 1, 0, 1, 1)


def layers() -> Iterator[tuple[Layer, int]]:
    """All of them, each with its batches."""
    yield from itertools.product({*network_layers(), *other_layers()}, BATCHES)
    rarer = {*heads(), *layers_between_scales(), *volume_layers()}
    yield from itertools.product(rarer, FEW_BATCHES)


def cases(table: Path) -> list[tuple[int, int, int, Layer]]:
    """Number of the type, whether channels lie last, batch and layer, of what a table lacks.

    In an order of no meaning.
    """
    known = {tuple(row.split(",")[:KEYS]) for row in table.read_text().splitlines()}
    found = [
        (number, last, batch, layer)
        for (layer, batch), number, last in itertools.product(
            sorted(set(layers())), range(3), (0, 1)
        )
        if not (layer[0] == LINES and last)
        and tuple(map(str, (layer[0], number, last, batch, *layer[1:]))) not in known
    ]
    random.Random(0).shuffle(found)
    return found


def measure_one(number: int, last: int, batch: int, layer: Layer, *, searches: bool) -> str | None:
    """The row of a case; None where it is too large, or takes none of cuDNN's kernels.

    Args:
        number: The type's.
        last: Whether channels lie last.
        batch: Images.
        layer: The convolution.
        searches: Whether to measure the search of cudnn.benchmark, and then the plan that it chose.
    """
    torch.backends.cudnn.benchmark = searches
    calls = 2 if searches else 1
    kind, channels, side, out, kernel, stride, padding, groups, dilation = layer
    dtype, lines = TYPES[number], kind == LINES
    dimensions = 1 if lines else 3 if kind in VOLUMES else 2
    area = side**dimensions
    if batch * area * max(channels, out / stride) * dtype.itemsize > MOST_BYTES:
        return None
    if groups == channels:
        return None  # PyTorch has kernels of its own
    transposed = kind in TRANSPOSED
    sizes = (channels, out) if transposed else (out, channels // groups)
    lasts = torch.channels_last_3d if kind in VOLUMES else torch.channels_last
    layout = lasts if last else torch.contiguous_format

    def make(*size: int) -> torch.Tensor:
        return torch.empty(size, device="cuda", dtype=dtype, memory_format=layout)

    def spread(value: int, least: int) -> list[int]:
        return [least, value] if lines else [value] * dimensions

    if torch.cuda.memory_reserved() > MOST_KEPT:
        torch.cuda.empty_cache()
    image, weight = make(batch, channels, *spread(side, 1)), make(*sizes, *spread(kernel, 1))
    more = spread(0, 0)
    how: Any = (*map(spread, (stride, padding, dilation), (1, 0, 1)), transposed, more, groups)
    gradient = make(*_output_sizes(image, weight, how))
    found = [_besides(lambda: torch.ops.aten.convolution(image, weight, None, *how), calls)]
    for mask in ([True, False, False], [False, True, False]):
        besides = _besides(
            lambda mask=mask: torch.ops.aten.convolution_backward(
                gradient, image, weight, None, *how, mask
            ),
            calls,
        )
        found.append(besides)
    row = (
        kind,
        number,
        last,
        batch,
        channels,
        side,
        out,
        kernel,
        stride,
        padding,
        groups,
        dilation,
    )
    columns = itertools.chain(row, *zip(*found, strict=True))
    return ",".join(map(str, columns))


def _output_sizes(image: torch.Tensor, weight: torch.Tensor, how: Any) -> torch.Size:
    return torch.ops.aten.convolution(image.to("meta"), weight.to("meta"), None, *how).shape


def _besides(call: Any, times: int) -> list[int]:
    """The bytes that each of several calls asks for besides what it returns."""
    found = []
    for _ in range(times):
        torch.cuda.reset_peak_memory_stats()
        result = call()
        stats = torch.cuda.memory_stats()
        found.append(stats["requested_bytes.all.peak"] - stats["requested_bytes.all.current"])
        del result
    return found


def _work(index: int, workers: int, seconds: float, out: Path, searches: bool) -> None:
    table = SEARCHED[0] if searches else TABLE
    end = time.monotonic() + seconds
    with (out.parent / f"{out.name}.{index}").open("w") as file:
        for case in cases(table)[index::workers]:
            if time.monotonic() > end:
                break
            try:
                row = measure_one(*case, searches=searches)
            except RuntimeError as error:
                print(case, str(error).splitlines()[0], flush=True)
                continue
            if row is not None:
                file.write(f"{row}\n")
                file.flush()


def measure(out: Path, workers: int, seconds: float, *, searches: bool) -> None:
    """Measure in several processes, for choosing kernels keeps the host busy."""
    context = multiprocessing.get_context("spawn")
    started = [
        context.Process(target=_work, args=(index, workers, seconds, out, searches))
        for index in range(workers)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join()
    parts = [out.parent / f"{out.name}.{index}" for index in range(workers)]
    rows = sorted(line for part in parts for line in part.read_text().splitlines())
    out.write_text("".join(f"{row}\n" for row in rows))
    print(f"{len(rows)} rows")


def merge_searches(new: Path) -> None:
    """Add rows of searches to both their tables."""
    rows = [row.split(",") for row in new.read_text().splitlines()]
    for table, begin in zip(SEARCHED, (KEYS, KEYS + 3), strict=True):
        merge(table, [",".join((*row[:KEYS], *row[begin : begin + 3])) for row in rows])


def merge(table: Path, new: Sequence[str]) -> None:
    """Add rows to a table, but for cases that it has."""
    lines = table.read_text().splitlines()
    head = [line for line in lines if line.startswith("#")]
    rows = [line for line in lines if not line.startswith("#")]
    known = {tuple(row.split(",")[:KEYS]) for row in rows}
    added = [row for row in new if tuple(row.split(",")[:KEYS]) not in known]
    table.write_text("".join(f"{line}\n" for line in (*head, *rows, *added)))
    print(f"{len(added)} rows added to {len(rows)}")


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["measure", "search", "merge", "merge-searches"])
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=240)
    chosen = parser.parse_args()
    if chosen.what == "merge":
        merge(TABLE, chosen.file.read_text().splitlines())
    elif chosen.what == "merge-searches":
        merge_searches(chosen.file)
    else:
        searches = chosen.what == "search"
        measure(chosen.out, chosen.workers, chosen.seconds, searches=searches)


if __name__ == "__main__":
    main()
