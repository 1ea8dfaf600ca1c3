"""Measures cuDNN's workspaces for convolutions, by default and with `cudnn.benchmark`."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from plimsoll.engine.gpus.card_files import CONVOLUTION

_MOST_BYTES = 1 << 30
"""A convolution with a larger operand is not measured."""
_MOST_KEPT_BYTES = 4 << 30
_TYPES = ("bfloat16", "float32", "float16")
_LAYOUTS = ("", " channels_last")
_SEARCHES = 3
_BATCHES = (8, 32)
_ALL_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


_Found = TypeVar("_Found")


def measure_convolutions(convolutions: Sequence[str], seconds: float) -> dict[str, list[int]]:
    """Measures convolutions for `seconds`. Leaves out those that fail or have large operands."""
    return _measure(workspaces, convolutions, seconds)


def measure_searches(convolutions: Sequence[str], seconds: float) -> dict[str, list[list[int]]]:
    """Measures the searches of cudnn.benchmark in the same way as `measure_convolutions`."""
    return _measure(searches, convolutions, seconds)


def _measure(
    measure: Callable[[str], _Found | None], convolutions: Sequence[str], seconds: float
) -> dict[str, _Found]:
    end, found = time.monotonic() + seconds, dict[str, _Found]()
    for words in convolutions:
        if time.monotonic() > end:
            break
        try:
            sizes = measure(words)
        except RuntimeError:  # the card has too little memory, or cuDNN has no kernel
            continue
        if sizes is not None:
            found[words] = sizes
    return found


def workspaces(words: str) -> list[int] | None:
    """Measures the workspaces of a convolution's three passes.

    Returns:
        Returns the bytes for the forward pass, the gradient of the input and that of the weight;
        None if the operands are too large.

    Raises:
        RuntimeError: If PyTorch cannot run the convolution.
    """
    passes = _passes(words)
    return None if passes is None else [_besides(each) for each in passes]


def searches(words: str) -> list[list[int]] | None:
    """Measures the memory of cudnn.benchmark's searches for a convolution's three passes.

    Returns:
        Returns a list of bytes for each pass; `CardFile.searches` describes the numbers in it.
        Returns None if the operands are too large.

    Raises:
        RuntimeError: If PyTorch cannot run the convolution.
    """
    passes = _passes(words)
    return None if passes is None else [_search(each) for each in passes]


def _search(call: Callable[[], Any]) -> list[int]:
    """Lets cuDNN search several times for the call's fastest plan, each time in a new thread.

    A thread keeps the plan that it found, so only a new thread makes cuDNN search again. Returns a
    list. Its first value is the most bytes that a search took. Each further value is the bytes that
    the call took with one of the plans found.
    """
    import torch

    tried: list[tuple[int, int]] = []
    failures: list[RuntimeError] = []

    def search() -> None:
        try:
            tried.append((_besides(call), _besides(call)))
        except RuntimeError as error:
            failures.append(error)

    torch.backends.cudnn.benchmark = True
    try:
        for _ in range(_SEARCHES):
            thread = threading.Thread(target=search)
            thread.start()
            thread.join()
    finally:
        torch.backends.cudnn.benchmark = False
    if failures:
        raise failures[0]
    return [max(first for first, _ in tried), *sorted(second for _, second in tried)]


def _passes(words: str) -> list[Callable[[], Any]] | None:
    """Returns functions that run the three passes of the convolution that `words` describe."""
    import torch

    given = CONVOLUTION.fullmatch(words)
    assert given is not None, words
    numbers = {name: _numbers(given[name] or "") for name in _NUMBERS}
    dtype = getattr(torch, given["type"])
    dimensions = len(numbers["stride"])
    lasts = torch.channels_last_3d if dimensions == 3 else torch.channels_last
    layout = lasts if given["channels_last"] else torch.contiguous_format

    def make(sizes: Sequence[int]) -> Any:
        return torch.empty(*sizes, device="cuda", dtype=dtype).to(memory_format=layout)

    how = (
        *(numbers["stride"], numbers["padding"], numbers["dilation"]),
        *(bool(given["transposed"]), numbers["output_padding"] or [0] * dimensions),
        numbers["groups"][0],
    )
    out = torch.ops.aten.convolution(
        torch.empty(*numbers["input"], device="meta", dtype=dtype),
        torch.empty(*numbers["weight"], device="meta", dtype=dtype),
        None,
        *how,
    )
    operands = (numbers["input"], numbers["weight"], out.shape)
    if max(map(_product, operands)) * dtype.itemsize > _MOST_BYTES:
        return None
    if torch.cuda.memory_reserved() > _MOST_KEPT_BYTES:
        torch.cuda.empty_cache()
    image, weight, gradient = map(make, operands)
    forward = partial(torch.ops.aten.convolution, image, weight, None, *how)
    backward = partial(torch.ops.aten.convolution_backward, gradient, image, weight, None, *how)
    masks = ([True, False, False], [False, True, False])
    return [forward, *(partial(backward, mask) for mask in masks)]


_NUMBERS = ("input", "weight", "stride", "padding", "dilation", "groups", "output_padding")


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split("x") if number]


def _product(sizes: Sequence[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def _besides(call: Callable[[], Any]) -> int:
    """Returns the peak of a call's memory, minus the memory of its results."""
    import torch

    torch.cuda.reset_peak_memory_stats()
    result = call()
    stats = torch.cuda.memory_stats()
    del result
    return int(stats["requested_bytes.all.peak"] - stats["requested_bytes.all.current"])


def common_convolutions(*, thorough: bool) -> list[str]:
    """Returns descriptions of the convolutions of well-known networks, in no particular order."""
    batches = _ALL_BATCHES if thorough else _BATCHES
    found = [
        _words(dtype + layout, batch, *layer)
        for layer, batch, dtype, layout in itertools.product(
            sorted(set(_layers())), batches, _TYPES, _LAYOUTS
        )
    ]
    random.Random(0).shuffle(found)  # noqa: S311
    return found


_Layer = tuple[bool, int, int, int, int, int, int]
"""A convolution layer: is_transposed, channels, side, out_channels, kernel, stride, padding.

The side is the height, and also the width, of the input.
"""


def _words(
    kind: str,
    batch: int,
    transposed: bool,
    channels: int,
    side: int,
    out: int,
    kernel: int,
    stride: int,
    padding: int,
) -> str:
    wide = (channels, out) if transposed else (out, channels)
    text = (
        f"{kind}{' transposed' if transposed else ''} {batch}x{channels}x{side}x{side}"
        f" by {wide[0]}x{wide[1]}x{kernel}x{kernel} stride {stride}x{stride}"
        f" padding {padding}x{padding} dilation 1x1 groups 1"
    )
    return text + (" output_padding 0x0" if transposed else "")


def _layers() -> Iterator[_Layer]:
    # ResNet-50 and similar networks have these layers, at 224 pixels.
    yield False, 3, 224, 64, 7, 2, 3
    for side, channels in ((56, 64), (28, 128), (14, 256), (7, 512)):
        yield False, channels, side, channels, 3, 1, 1
        yield False, channels, side, 4 * channels, 1, 1, 0
        yield False, 4 * channels, side, channels, 1, 1, 0
        if side < 56:
            yield False, channels // 2, 2 * side, channels, 3, 2, 1
            yield False, channels, 2 * side, channels, 3, 2, 1
            yield False, 2 * channels, 2 * side, 4 * channels, 1, 2, 0
    # U-Nets and VGG have these layers, for images of 256 pixels.
    for side, channels in ((256, 64), (128, 128), (64, 256), (32, 512), (16, 1024)):
        yield False, channels, side, channels, 3, 1, 1
        yield False, channels // 2, side, channels, 3, 1, 1
        yield False, 2 * channels, side, channels, 3, 1, 1
        yield True, 2 * channels, side // 2, channels, 2, 2, 0
    # Networks that denoise latent images have these layers.
    for side, channels in ((64, 320), (32, 640), (16, 1280)):
        yield False, channels, side, channels, 3, 1, 1
        yield False, channels, side, channels, 3, 2, 1
        yield False, 2 * channels, side, channels, 3, 1, 1
    # Vision transformers have these layers, which split an image into patches.
    for side, patch, width in ((224, 16, 768), (224, 14, 1024), (224, 32, 768), (32, 2, 1152)):
        yield False, 4 if patch == 2 else 3, side, width, patch, patch, 0
    # GANs have these layers: transposed ones in the generator, plain ones in the discriminator.
    for channels, side in ((1024, 4), (512, 8), (256, 16), (128, 32)):
        yield True, channels, side, channels // 2, 4, 2, 1
        yield False, channels // 2, 2 * side, channels, 4, 2, 1
