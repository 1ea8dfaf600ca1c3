"""Measures the host memory of programs, and compares it with plimsoll's predictions.

    python benchmarks/host_memory.py parts                   # on a GPU: figures for host_use.py
    python benchmarks/host_memory.py compare                 # programs on the host alone
    python benchmarks/host_memory.py compare --device cuda   # on a GPU

`parts` prints this process's own memory and mapped files as it uses more and more libraries.
`compare` runs the programs of `benchmarks/host`, and then predicts them. A measurement is the
anonymous memory of all processes of the program (a page that they share counts once) plus the
growth of the machine's shared memory. So a measurement includes shared memory that other programs
take at the same time. The table leaves out what Python, PyTorch and CUDA take without any data.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

_PROGRAMS = Path(__file__).with_name("host")
_RUNS = (
    ("numpy_data.py",),
    ("python_objects.py",),
    ("host_tensors.py",),
    ("checkpoint.py",),
    ("loader.py", "0"),
    ("loader.py", "2"),
    ("loader.py", "4"),
    ("loader.py", "2", "512"),
)
_INTERVAL_SECONDS = 0.02
_MIB = 1 << 20


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("parts", "compare"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    if options.what == "parts":
        _parts()
    else:
        _compare(options.device, options.only)


def _parts() -> None:
    """Uses libraries one by one in this process. Prints how much memory each use adds.

    The first row is the memory that this program takes before it imports PyTorch.
    """
    before = (0, 0)

    def row(name: str) -> None:
        nonlocal before
        status = _fields(Path("/proc/self/status"))
        now = status["RssAnon"] + status["RssShmem"], status["RssFile"]
        own, files = (new - old for new, old in zip(now, before, strict=True))
        before = now
        print(f"{name:40} own {own / _MIB:+8.1f} MiB  files {files / _MIB:+8.1f} MiB", flush=True)

    row("Python")
    import torch

    row(f"import torch {torch.__version__}")
    if not torch.cuda.is_available():
        return
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    row("a context, and a first tensor")
    for device in range(1, torch.cuda.device_count()):
        torch.zeros(1, device=f"cuda:{device}")
        row(f"a context on GPU {device}")
    a = torch.randn(1024, 1024, device="cuda")
    (a + a).sum().item()
    row("some kernels of PyTorch's")
    (a @ a).sum().item()
    row("cuBLAS")
    (a.bfloat16() @ a.bfloat16()).sum().item()
    row("cuBLAS, in bfloat16")
    image = torch.randn(8, 64, 64, 64, device="cuda", requires_grad=True)
    torch.nn.Conv2d(64, 64, 3).cuda()(image).sum().backward()
    torch.cuda.synchronize()
    row("cuDNN: a convolution and its backward")
    model = torch.nn.TransformerEncoderLayer(512, 8, batch_first=True).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    row("an optimizer (imports torch._dynamo)")
    for _ in range(3):
        model(torch.randn(8, 256, 512, device="cuda")).sum().backward()
        optimizer.step()
    torch.cuda.synchronize()
    row("a transformer's steps")
    kept = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    row("1 GiB, page-locked")
    del kept


def _compare(device: str, only: str) -> None:
    """Prints the measured and the predicted memory of each program.

    Subtracts the memory that Python, PyTorch and CUDA take alone.
    """
    from machine import machine

    from plimsoll.prediction.host_use import CONTEXT, CUBLAS, CUDNN, PYTHON, TORCH
    from plimsoll.prediction.predict import predict

    used = [PYTHON, TORCH] + ([CONTEXT, CUBLAS, CUDNN] if device == "cuda" else [])
    costs = sum(cost.own_bytes + cost.file_bytes for cost in used)
    print(f"machine: {machine()}; torch {importlib.metadata.version('torch')}", flush=True)
    bare = _measured([sys.executable, "-c", _bare(device)])
    print(f"Python, PyTorch and CUDA alone: {bare / _MIB:.0f} MiB of their own")
    print(f"{'program':24} {'measured':>9} {'predicted':>9}  (MiB beyond these)")
    for name, *arguments in _RUNS:
        shown = " ".join([name, *arguments])
        if only not in shown:
            continue
        script = _PROGRAMS / name
        measured = _measured([sys.executable, str(script), device, *arguments]) - bare
        found = predict(script, [device, *arguments])
        assert found.host_peak_bytes is not None
        assert found.host_peak_range_bytes is not None
        predicted = found.host_peak_bytes - costs
        low, high = (bound - costs for bound in found.host_peak_range_bytes)
        row = f"{shown:24} {measured / _MIB:9.0f} {predicted / _MIB:9.0f}"
        print(f"{row}  ({low / _MIB:.0f} to {high / _MIB:.0f})", flush=True)


def _bare(device: str) -> str:
    """Returns the text of a program that uses libraries but hardly any data.

    On the CPU the program uses PyTorch, and on a GPU also CUDA, cuBLAS and cuDNN.
    """
    if device == "cpu":
        return "import torch, time; time.sleep(0.5)"
    return (
        "import torch, time\n"
        "model = torch.nn.Conv2d(8, 8, 3).cuda()\n"
        "x = torch.randn(8, 8, 16, 16, device='cuda')\n"
        "model(x).sum().item(); (x @ x).sum().item(); time.sleep(0.5)"
    )


def _measured(command: list[str]) -> int:
    """Returns the peak of anonymous and shared memory of a program and its children."""
    shared_before = _fields(Path("/proc/meminfo"))["Shmem"]
    most = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            own = 0
            for each in _tree(process.pid):
                with suppress(OSError, KeyError):
                    own += _fields(Path(f"/proc/{each}/smaps_rollup"))["Pss_Anon"]
            shared = _fields(Path("/proc/meminfo"))["Shmem"] - shared_before
            most = max(most, own + max(0, shared))
            time.sleep(_INTERVAL_SECONDS)
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)} failed")
    return most


def _tree(root: int) -> list[int]:
    """Returns the ids of a process and its descendants."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                stat = (folder / "stat").read_text()
                parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
    found = [root]
    for each in found:
        found += [process for process, parent in parents.items() if parent == each]
    return found


def _fields(path: Path) -> dict[str, int]:
    """Returns the fields of a /proc file, such as `RssAnon:  1024 kB`, in bytes."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {
        line[0].removesuffix(":"): int(line[1]) * 1024
        for line in lines
        if len(line) == 3 and line[2] == "kB"
    }


if __name__ == "__main__":
    main()
