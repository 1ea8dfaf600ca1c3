"""`plimsoll.simulated_operation`: what a program's own operation takes on simulated GPUs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from plimsoll.base.errors import InputError
from plimsoll.torch.simulated.libraries import operations
from plimsoll.torch.simulated.start import running

if TYPE_CHECKING:
    from collections.abc import Callable

_NAME = re.compile(r"\w+::\w+(\.\w+)?")


def simulated_operation(
    name: str,
    *,
    shapes: Callable[..., Any] | None = None,
    workspace: int | Callable[..., int] = 0,
) -> None:
    """Say what an operation returns and takes on simulated GPUs, where its kernel cannot run.

    Where there is a GPU it does nothing, so that it can stay in the program. It may come before
    the operation itself is there.

    >>> import plimsoll
    >>> plimsoll.simulated_operation(
    ...     "mylib::pairs",
    ...     shapes=lambda points, radius: points.new_empty(points.size(0), 2),
    ...     workspace=lambda points, radius: 4 * points.size(0) ** 2,
    ... )

    Args:
        name: "library::operation", with its overload if it has one: "library::operation.out".
        shapes: Called with the operation's arguments, of tensors their shapes alone (on `meta`).
            Returns the results as a fake implementation does, or their sizes, which then have the
            type of the first tensor; a size that data decides is
            `torch.library.get_ctx().new_dynamic_size(max=...)`. Not needed of an operation with a
            fake implementation, or that only writes to its arguments.
        workspace: The bytes that the kernel takes while it runs, or a function of the operation's
            arguments that returns them.

    Raises:
        InputError: If the name is none of an operation.
    """
    if not _NAME.fullmatch(name):
        raise InputError(f'{name}: an operation is called "library::operation"')
    simulation = running()
    if simulation is None:
        return
    operations.simulate_operation(name, operations.Operation(shapes, workspace))
    simulation.after_import(lambda: operations.register_kernels(simulation))
