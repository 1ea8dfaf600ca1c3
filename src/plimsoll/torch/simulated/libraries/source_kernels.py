"""Launches of kernels that take tensors of their caller, and their line in the report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.compiled.assumptions import assume

if TYPE_CHECKING:
    from collections.abc import Callable


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


class UnknownKernels:
    """Stands in for a compiled module: its attributes are kernels, by their names."""

    def __init__(self, name: str) -> None:
        """Stands in for the module of this name."""
        self._name = name

    def __getattr__(self, kernel: str) -> Callable[..., None]:
        """Returns a kernel that launches as `launch_unknown_kernel` says."""
        if kernel.startswith("__"):
            raise AttributeError(kernel)

        def launch(*arguments: Any) -> None:
            launch_unknown_kernel(f"{self._name}::{kernel}", arguments)

        return launch


def launch_unknown_kernel(name: str, arguments: Any) -> None:
    """Launches a kernel of which only the arguments are known.

    Args:
        name: The kernel's name, for the report.
        arguments: Its arguments; tensors in tuples, lists and dictionaries count too.
    """
    import torch
    from torch.utils._pytree import tree_leaves

    given = [each for each in tree_leaves(arguments) if isinstance(each, torch.Tensor)]
    written = [each for each in given if each.is_floating_point()]
    assume(
        name, "which tensors it writes is not known; taken are all of them that hold no integers"
    )
    torch.ops.plimsoll.launch(written, sum(each.nbytes for each in written), [], [], torch.float32)
