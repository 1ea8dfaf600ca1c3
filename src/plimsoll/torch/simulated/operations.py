"""Which operations have CUDA kernels, where a build without CUDA cannot tell."""

from __future__ import annotations

from pathlib import Path


def _read() -> list[str]:
    lines = (Path(__file__).parent / "cuda_kernels.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


CUDA_KERNELS = _read()
"""Operations with a CUDA kernel that a build without CUDA would compose of others."""
