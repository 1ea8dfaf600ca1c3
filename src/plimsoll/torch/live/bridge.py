"""The bridge: the library that puts plimsoll's allocator under PyTorch on a real GPU."""

from __future__ import annotations

from pathlib import Path

from plimsoll.torch.building.compiler import Recipe

BRIDGE = Recipe(
    name="bridge",
    purpose="the bridge to PyTorch's allocator",
    sources=Path(__file__).parent / "csrc",
    flags=("-O2",),
    libraries=("torch_cpu", "c10", "c10_cuda"),
    needs_cuda=True,
)
