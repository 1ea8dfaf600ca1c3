"""`plimsoll.simulated_operation`, with which a program describes a custom PyTorch operation."""

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
    """Tells the simulation the results and the memory of an operation that needs a real GPU.

    On a real GPU this function does nothing, so the call can stay in the program. The call may
    come before the operation is defined.

    >>> import plimsoll
    >>> plimsoll.simulated_operation(
    ...     "mylib::pairs",
    ...     shapes=lambda points, radius: points.new_empty(points.size(0), 2),
    ...     workspace=lambda points, radius: 4 * points.size(0) ** 2,
    ... )

    Args:
        name: "library::operation", with its overload if it has one: "library::operation.out".
        shapes: A function that takes the operation's arguments. Tensors among them are on the
            device `meta`, so they have no data. The function returns the results, as a fake
            implementation does. If it returns only sizes, the results have the type of the first
            tensor argument. If a size depends on data, the function has to call
            `torch.library.get_ctx().new_dynamic_size(max=...)`. An operation needs no `shapes` if
            it has a fake implementation, or if it only writes to its arguments.
        workspace: The bytes that the kernel takes while it runs, or a function of the operation's
            arguments that returns them.

    Raises:
        InputError: If the name is not of the form "library::operation".
    """
    if not _NAME.fullmatch(name):
        raise InputError(f'{name}: an operation is called "library::operation"')
    simulation = running()
    if simulation is None:
        return
    operations.simulate_operation(name, operations.Operation(shapes, workspace))
    simulation.after_import(lambda: operations.register_kernels(simulation))
