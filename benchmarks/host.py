"""Measures the host's time to queue work, for several kinds of programs with tiny kernels.

    python benchmarks/host.py measure [--results FOLDER]
    python benchmarks/host.py compare [--results FOLDER]

`measure` needs a GPU, and writes FOLDER/host.csv: the time of each case, in microseconds. `compare`
runs the cases on a simulated GPU, and prints the simulated clock's times.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

RESULTS = Path(__file__).parent / "results"


def small(*shape: int, **options: object) -> torch.Tensor:
    """Returns a small tensor on the GPU."""
    return torch.randn(*shape, device="cuda", **options)


def chain() -> Callable[[Callable[[str], None]], None]:
    """Returns a program that calls functions instead of modules, and makes views."""
    x = small(16, 16, requires_grad=True)

    def run(mark: Callable[[str], None]) -> None:
        with torch.no_grad():
            y = x
            for _ in range(200):
                y = functional.gelu(y)
        mark("200 functions, no graph")
        y = x
        for _ in range(200):
            y = functional.gelu(y)
        mark("200 functions, forward")
        y.sum().backward()
        mark("200 functions, backward")
        for _ in range(400):
            y = x.view(256).view(16, 16)
        mark("800 views")

    return run


def passes(
    net: nn.Module, x: torch.Tensor, name: str, *, autocast: bool = False
) -> Callable[[Callable[[str], None]], None]:
    """Returns a program that runs a network's forward and backward pass."""

    def run(mark: Callable[[str], None]) -> None:
        net.zero_grad()
        mark("")
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            y = net(x)
        mark(f"{name}, forward")
        y.sum().backward()
        mark(f"{name}, backward")

    return run


def layers(*, autocast: bool) -> Callable[[Callable[[str], None]], None]:
    """Returns a program that runs modules with one kernel each."""
    parts = [part for _ in range(20) for part in (nn.Linear(32, 32), nn.LayerNorm(32), nn.GELU())]
    net = nn.Sequential(*parts).to("cuda")
    name = "60 modules" + (", autocast" if autocast else "")
    return passes(net, small(8, 32), name, autocast=autocast)


def encoder() -> Callable[[Callable[[str], None]], None]:
    """Returns a program that runs PyTorch's own transformer layers."""
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, norm_first=True)
    net = nn.TransformerEncoder(layer, 8).to("cuda")
    return passes(net, small(2, 16, 64), "8 encoder layers")


def images() -> Callable[[Callable[[str], None]], None]:
    """Returns a program that runs convolutions with normalization."""
    parts = [
        part
        for _ in range(16)
        for part in (nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
    ]
    net = nn.Sequential(*parts).to("cuda")
    return passes(net, small(2, 16, 8, 8), "16 convolutions")


def optimizers() -> Callable[[Callable[[str], None]], None]:
    """Returns a program that runs optimizer steps over 150 small parameters."""

    def of(
        kind: type[torch.optim.Optimizer], *, count: int = 150, **options: object
    ) -> torch.optim.Optimizer:
        parameters = [nn.Parameter(small(64)) for _ in range(count)]
        for parameter in parameters:
            parameter.grad = small(64)
        made = kind(parameters, lr=1e-3, **options)
        made.step()
        return made

    adamw, fused = of(torch.optim.AdamW), of(torch.optim.AdamW, fused=True)
    sgd = of(torch.optim.SGD, momentum=0.9)
    plain = of(torch.optim.AdamW, foreach=False)
    few = of(torch.optim.AdamW, count=6)
    parameters = adamw.param_groups[0]["params"]

    def run(mark: Callable[[str], None]) -> None:
        adamw.step()
        mark("AdamW of 150")
        few.step()
        mark("AdamW of 6")
        few.zero_grad(set_to_none=False)
        mark("zero_grad of 6, kept")
        fused.step()
        mark("fused AdamW of 150")
        sgd.step()
        mark("SGD of 150")
        plain.step()
        mark("AdamW of 150, one by one")
        nn.utils.clip_grad_norm_(parameters, 1.0)
        mark("clip_grad_norm_ of 150")

    return run


def llama() -> Callable[[Callable[[str], None]], None]:
    """Returns a program that runs a small Llama model of Transformers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=100, hidden_size=64, intermediate_size=128, num_hidden_layers=8,
        num_attention_heads=4, attn_implementation="eager",
    )  # fmt: skip
    net = LlamaForCausalLM(config).to("cuda")
    ids = torch.randint(100, (2, 16), device="cuda")

    def run(mark: Callable[[str], None]) -> None:
        with torch.no_grad():
            net(ids, use_cache=False)
        mark("8 Llama layers, no graph")
        loss = net(ids, labels=ids, use_cache=False).loss
        mark("8 Llama layers, forward")
        loss.backward()
        mark("8 Llama layers, backward")
        net.zero_grad()
        mark("")

    return run


def copies() -> Callable[[Callable[[str], None]], None]:
    """Returns a program that copies from the host on a second stream."""
    side = torch.cuda.Stream()
    tensors = [torch.zeros(64).pin_memory() for _ in range(20)]

    def run(mark: Callable[[str], None]) -> None:
        with torch.cuda.stream(side):
            there = [tensor.to("cuda", non_blocking=True) for tensor in tensors]
        mark("20 copies from page-locked memory")
        for tensor in there:
            tensor.record_stream(torch.cuda.current_stream())
        mark("20 times record_stream")
        del there
        mark("")
        for tensor in tensors:
            tensor.to("cuda")
        mark("20 copies waited for")

    return run


def plans() -> Callable[[Callable[[str], None]], None]:
    """Returns a program that uses new shapes in each run: cuDNN has no plan for them yet."""
    lengths = iter(range(64, 64000, 8))

    def run(mark: Callable[[str], None]) -> None:
        length = next(lengths)
        q = small(2, 4, length, 64, dtype=torch.float16, requires_grad=True)
        weight = small(16, 16, 3, 3, requires_grad=True)
        image = small(1, 16, 8, length, requires_grad=True)
        mark("")
        with (
            torch.no_grad(),
            torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION),
        ):
            functional.scaled_dot_product_attention(q[:, :, -1:], q, q)
        mark("cuDNN attention, new shape, no graph")
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):
            y = functional.scaled_dot_product_attention(q, q, q)
        mark("cuDNN attention, new shape, forward")
        y.sum().backward()
        mark("cuDNN attention, new shape, backward")
        z = functional.conv2d(image, weight)
        mark("cuDNN convolution, new shape, forward")
        z.sum().backward()
        mark("cuDNN convolution, new shape, backward")

    return run


CASES: list[Callable[[], Callable[[Callable[[str], None]], None]]] = [
    chain, lambda: layers(autocast=False), lambda: layers(autocast=True), encoder, images,
    optimizers, llama, copies, plans,
]  # fmt: skip


def times(now: Callable[[], float], repetitions: int) -> dict[str, float]:
    """Returns the median time of each part of each case, in the unit of the clock `now`."""
    found: dict[str, list[float]] = {}
    for case in CASES:
        run = case()
        for repetition in range(repetitions + 3):
            torch.cuda.synchronize()
            last = now()

            def mark(name: str, *, counts: bool = repetition >= 3) -> None:
                nonlocal last
                here = now()
                if name and counts:
                    found.setdefault(name, []).append(here - last)
                torch.cuda.synchronize()
                last = now()

            run(mark)
    return {name: statistics.median(values) for name, values in found.items()}


def measure(results: Path) -> None:
    """Measures all cases on a GPU, and writes their times."""
    rows = times(lambda: time.perf_counter() * 1e6, 15)
    with (results / "host.csv").open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["case", "us"])
        for name, us in rows.items():
            out.writerow([name, f"{us:.0f}"])
            print(f"{name:40} {us:9.0f} us")


def compare(results: Path) -> None:
    """Compares the simulated clock with the measurements."""
    from plimsoll.torch.simulated.start import running

    simulation = running()
    if simulation is None:
        sys.exit("compare runs on a simulated GPU: plimsoll run --simulate H200 benchmarks/host.py")

    def host_us() -> float:
        return simulation.machine.now * 1e6

    with (results / "host.csv").open() as file:
        measured = {row["case"]: float(row["us"]) for row in csv.DictReader(file)}
    kernels = times(lambda: float(simulation.library.clock(0).kernels), 2)
    for name, us in times(host_us, 2).items():
        print(
            f"{name:40} {measured[name]:9.0f} us, {us:9.0f} simulated, {us / measured[name]:5.2f}, "
            f"{kernels[name]:.0f} kernels"
        )


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["measure", "compare"])
    parser.add_argument("--results", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    (measure if chosen.what == "measure" else compare)(chosen.results)


if __name__ == "__main__":
    main()
