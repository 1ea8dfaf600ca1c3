"""Which modules of libraries with kernels of their own are loaded otherwise on simulated GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.torch.simulated.libraries.deepspeed_kernels import stand_in_for_kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from plimsoll.torch.simulated.simulation import Simulation


def library_modules(
    simulation: Simulation,  # noqa: ARG001
) -> Mapping[str, Callable[[ModuleType, Callable[[], None]], None]]:
    """By name, how each is loaded: called with the module, and with what executes its code."""
    return {
        "deepspeed.ops.op_builder.builder": stand_in_for_kernels,
    }
