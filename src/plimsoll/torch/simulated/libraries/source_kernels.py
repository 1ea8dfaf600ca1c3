"""Kernels whose memory is known from their source: their launch, and their line in the report."""

from __future__ import annotations

from typing import Any

from plimsoll.torch.simulated.compiled.assumptions import assume


def note_kernel(library: str, release: str) -> None:
    """Notes for the report that a library's kernel was called, whose memory was not measured.

    Args:
        library: The name by which programs import it.
        release: The library's name and version, whose source was read.
    """
    assume(
        library,
        f"a stand-in takes the memory that the kernels of {release} take, as read from source, not "
        "measured",
    )


def launch_kernel(library: str, release: str, read: Any, written: Any) -> None:
    """Launches a kernel that reads and writes each tensor once.

    Args:
        library: Like that of `note_kernel`.
        release: Like that of `note_kernel`.
        read: Tensors that the kernel reads; None for an omitted argument.
        written: Tensors that it writes, or None if they are unknown.
    """
    import torch

    note_kernel(library, release)
    made = [one for one in written if one is not None]
    moved = sum(one.nbytes for one in (*read, *made) if one is not None)
    torch.ops.plimsoll.launch(made, moved, [], [], torch.float32)
