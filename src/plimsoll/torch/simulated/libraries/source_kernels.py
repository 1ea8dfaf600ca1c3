"""Launches libraries' kernels that allocate nothing themselves, and notes them for the report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.compiled.assumptions import assume

if TYPE_CHECKING:
    from collections.abc import Callable


def note_kernel(library: str, release: str) -> None:
    """Notes for the report that the memory of a library's kernel was not measured.

    Args:
        library: The name by which programs import the library.
        release: The name and the version of the library. The kernel's memory was determined from
            the source of this version.
    """
    assume(
        library,
        f"a stand-in takes the memory that the kernels of {release} take, as read from source, not "
        "measured",
    )


def launch_kernel(library: str, release: str, read: Any, written: Any) -> None:
    """Launches a kernel that reads and writes each tensor once.

    Args:
        library: As in `note_kernel`.
        release: As in `note_kernel`.
        read: The tensors that the kernel reads; None for an omitted argument.
        written: The tensors that the kernel writes; None for an omitted argument.
    """
    import torch

    note_kernel(library, release)
    made = [one for one in written if one is not None]
    moved = sum(one.nbytes for one in (*read, *made) if one is not None)
    torch.ops.plimsoll.launch(made, moved, [], [], torch.float32)


class UnknownKernels:
    """Stands in for a compiled module of which nothing is known: its attributes are kernels."""

    def __init__(self, name: str) -> None:
        """Stands in for the module named `name`."""
        self._name = name

    def __getattr__(self, kernel: str) -> Callable[..., None]:
        """Returns a function that calls `launch_unknown_kernel`."""
        if kernel.startswith("__"):
            raise AttributeError(kernel)

        def launch(*arguments: Any) -> None:
            launch_unknown_kernel(f"{self._name}::{kernel}", arguments)

        return launch


def launch_unknown_kernel(name: str, arguments: Any) -> None:
    """Launches a kernel of which only the arguments are known.

    Args:
        name: The kernel's name, for the report.
        arguments: The kernel's arguments. This function also finds the tensors in tuples, lists and
            dictionaries.
    """
    import torch
    from torch.utils._pytree import tree_leaves

    given = [each for each in tree_leaves(arguments) if isinstance(each, torch.Tensor)]
    written = [each for each in given if each.is_floating_point()]
    assume(
        name,
        "plimsoll does not know which tensors it writes, and assumes all that hold no integers",
    )
    torch.ops.plimsoll.launch(written, sum(each.nbytes for each in written), [], [], torch.float32)
