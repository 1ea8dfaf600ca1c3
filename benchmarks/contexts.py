"""Measures the memory that a process's CUDA context takes, library by library.

    python benchmarks/contexts.py [--gpu 0] [--out FILE]

No other process may use the GPU. Each run is a new process, which uses one library after the other.
After each library, the process asks the driver how much of the card is in use, and subtracts what
PyTorch has reserved. The results are in benchmarks/results/contexts.json. The figures in
engine/gpus/profiles.toml come from these results.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MIB = 1 << 20
USES = {
    "kernels": "torch.zeros(1, device='cuda')",
    "printing": "str(torch.zeros(3, device='cuda'))",
    "sort": "torch.randn(100000, device='cuda').sort()",
    "streams": "torch.cuda.Stream()",
    "graph": """
graph, x = torch.cuda.CUDAGraph(), torch.zeros(10, device='cuda')
with torch.cuda.graph(graph): x + 1
graph.replay()""",
    "cublas": "torch.randn(512, 512, device='cuda') @ torch.randn(512, 512, device='cuda')",
    "cublaslt": """
layer = torch.nn.Linear(512, 512).cuda()
layer(torch.randn(64, 512, device='cuda')).sum().backward()""",
    "convolution": """
layer = torch.nn.Conv2d(64, 64, 3, padding=1).cuda()
layer(torch.randn(8, 64, 56, 56, device='cuda')).sum().backward()""",
    "recurrent": """
layer = torch.nn.LSTM(256, 256).cuda()
layer(torch.randn(20, 8, 256, device='cuda'))[0].sum().backward()""",
    "flash": """
q = torch.randn(2, 8, 256, 64, device='cuda', dtype=torch.bfloat16, requires_grad=True)
torch.nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()""",
    "efficient": """
q = torch.randn(2, 8, 256, 64, device='cuda', requires_grad=True)
torch.nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()""",
    "cholesky": "torch.linalg.cholesky(torch.eye(64, device='cuda'))",
    "eigh": "torch.linalg.eigh(torch.eye(64, device='cuda'))",
    "solve": "torch.linalg.solve(torch.eye(64, device='cuda'), torch.ones(64, 1, device='cuda'))",
    "fourier": "torch.fft.fft(torch.randn(4, 1000, device='cuda'))",
    "sparse": "torch.eye(64, device='cuda').to_sparse_csr() @ torch.randn(64, 64, device='cuda')",
    "triton": "torch.compile(lambda x: x.sin() + 1)(torch.randn(1000, device='cuda'))",
}
"""Libraries by name, each with a statement that uses it."""
ORDERS = (
    tuple(USES),
    ("kernels", *reversed(list(USES)[1:])),
    *(("kernels", name) for name in USES if name != "kernels"),
)


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


def _taken_bytes(gpu: int) -> int:
    """Returns the bytes in use on a card, as the driver reports them."""
    library = ctypes.CDLL("libnvidia-ml.so.1")
    library.nvmlInit_v2()
    handle, memory = ctypes.c_void_p(), _Memory()
    library.nvmlDeviceGetHandleByIndex_v2(gpu, ctypes.byref(handle))
    library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
    return int(memory.used)


def steps(gpu: int, order: Sequence[str]) -> list[tuple[str, float]]:
    """Uses libraries in turn in this process. Returns the MiB that each adds to the context."""
    os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)
    before = _taken_bytes(gpu)
    import torch

    found, last = [], 0
    for name in order:
        exec(USES[name], {"torch": torch})
        torch.cuda.synchronize()
        now = _taken_bytes(gpu) - before - torch.cuda.memory_reserved()
        found.append((name, round((now - last) / MIB, 2)))
        last = now
    return found


def measure(gpu: int) -> dict[str, Any]:
    """Measures every order in `ORDERS`, each in a new process."""
    import torch

    runs = []
    for order in ORDERS:
        command = [sys.executable, __file__, "--gpu", str(gpu), "--order", ",".join(order)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        runs.append({"total_mib": round(sum(each for _, each in found), 1), "steps_mib": found})
        print(runs[-1], flush=True)
    return {"gpu": torch.cuda.get_device_name(gpu), "torch": torch.__version__, "runs": runs}


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--order", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.order:
        print(json.dumps(steps(chosen.gpu, chosen.order.split(","))))
        return
    found = measure(chosen.gpu)
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
